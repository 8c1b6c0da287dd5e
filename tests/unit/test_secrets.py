"""Secrets stay out of what is recorded; what explains a measurement stays in."""

from __future__ import annotations

import pytest

from distprof.run.secrets import MASK, mask_arguments, mask_text, measured_environment
from tests.unit.proportion import PROPORTIONATE, growth

# With the shapes of several services.
TOKENS = [
    "sk_live_s3cr3tvalue00",
    "AIzaSyD_s3cr3tvaluef4g3h2i1j0k9l8m7n6o",
    "npm_s3cr3tvalueijklmnopqrstuvwxyz0123456",
    "pypi-AgEIs3cr3tvalueCJGZm",
    "wandb_v1_s3cr3tvalueEFGH01234567",
    "nvapi-s3cr3tvalueijklmnop",
    "r8_s3cr3tvalueijklmnopqrstuvwxyz",
    "dckr_pat_s3cr3tvalueijkl",
    "xapp-1-A02-s3cr3tvalue",
    "wJalrXUtnFEMIs3cr3tvalueG/bPxRfiCYEXAMPL",
    "BEARER s3cr3tvalue",
]


@pytest.mark.parametrize(
    "arguments",
    [
        ["train.py", "--api-key", "s3cr3tvalue"],
        ["train.py", "--wandb_token=s3cr3tvalue"],
        ["train.py", "password=s3cr3tvalue"],
        ["train.py", "hub.auth_token=s3cr3tvalue"],
        ["train.py", "--data", "https://joe:s3cr3tvalue@example.org/x"],
        ["train.py", "ghp_s3cr3tvalue0000000000"],
        ["train.py", "--url=hf_s3cr3tvalue00000000"],
        ["train.py", "--authorization", "s3cr3tvalue"],
        ["train.py", "--authorisation=s3cr3tvalue"],
        ["train.py", "--header", "Authorization: Token s3cr3tvalue"],
        ["train.py", "--header", "Cookie: a=b; sid=s3cr3tvalue"],
        ["train.py", "--passphrase", "s3cr3tvalue"],
        ["train.py", "--wandb-key", "s3cr3tvalue"],
        ["train.py", "--tokens", "s3cr3tvalue"],
        ["train.py", "--hf_tokens=s3cr3tvalue"],
        ["train.py", "--token", "-s3cr3tvalue"],
        ["train.py", "db_pass=s3cr3tvalue"],
        ["train.py", "--ssh_key", "s3cr3tvalue"],
        ["train.py", "--session-id=s3cr3tvalue"],
        ["train.py", "https://s3cr3tvalue@github.com/x"],
        ["train.py", "https://:s3cr3tvalue@host"],
        ["train.py", "postgres://joe:a/s3cr3tvalue@db"],
        ["train.py", '--config={"hub": {"password": "s3cr3tvalue"}}'],
        ["train.py", '--config={\\"password\\": \\"s3cr3tvalue\\"}'],
        *(["train.py", f"--x={token}"] for token in TOKENS),
    ],
)
def test_secrets_are_masked(arguments: list[str]) -> None:
    masked = mask_arguments(arguments)
    assert "s3cr3tvalue" not in " ".join(masked)
    assert MASK in " ".join(masked)
    assert len(masked) == len(arguments)
    assert masked[0] == "train.py"


def test_ordinary_arguments_are_kept() -> None:
    arguments = [
        "train.py",
        "--lr",
        "0.1",
        "--max-tokens=512",
        "--tokenizer",
        "bpe",
        "--author",
        "joe",
        "-v",
        "--epochs",
        "3",
        "--tokens",
        "512",
        "--tokens=3.5B",
        "--use-auth-token",
        "--passes",
        "2",
        "--sort-key=size",
        "--data",
        "http://host:8080/path@v2",
        "ssh://git@host/repository",
    ]
    assert mask_arguments(arguments) == arguments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RuntimeError: login(password='s3cr3t value') failed", "RuntimeError: login(password='***') failed"),
        ('{"token": "s3cr3t", "lr": 1}', '{"token": "***", "lr": 1}'),
        (r"{\"token\": \"s3cr3t\", \"lr\": 1}", r"{\"token\": \"***\", \"lr\": 1}"),
        ("{token: s3cr3t}", "{token: ***}"),
        ("Cookie: a=s3cr3t; b=s3cr3t\nnext", "Cookie: ***\nnext"),
        ("AuthenticationError: wrong password", "AuthenticationError: wrong password"),
        ("KeyError: 'x'", "KeyError: 'x'"),
        ("forward pass: started", "forward pass: started"),
        ("token=None, password=''", "token=None, password=''"),
    ],
)
def test_of_a_text_only_the_secret_is_masked(text: str, expected: str) -> None:
    assert mask_text(text) == expected


@pytest.mark.parametrize(
    "piece",
    [
        "://",
        "://:",
        "://a:",
        "a@",
        "--token ",
        "token=",
        "key:",
        "tokens:",
        "bearer ",
        "npm_",
        "A1a/",
        'password="',
        "%",
    ],
)
def test_masking_takes_time_in_proportion(piece: str) -> None:
    assert growth(lambda times: mask_text(piece * times), 15_000 // len(piece)) < PROPORTIONATE


def test_environment_is_an_allow_list() -> None:
    environment = {
        "OMP_NUM_THREADS": "1",
        "NCCL_DEBUG": "INFO",
        "HOME": "/home/joe",
        "AWS_SECRET_ACCESS_KEY": "s3cr3tvalue",
        "TORCH_HUB_TOKEN": "s3cr3tvalue",
    }
    assert measured_environment(environment) == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1", "TORCH_HUB_TOKEN": MASK}
