"""Secrets stay out of what is recorded; what explains a measurement stays in."""

from __future__ import annotations

import pytest

from distprof.run.secrets import MASK, mask_arguments, measured_environment


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
    ]
    assert mask_arguments(arguments) == arguments


def test_environment_is_an_allow_list() -> None:
    environment = {
        "OMP_NUM_THREADS": "1",
        "NCCL_DEBUG": "INFO",
        "HOME": "/home/joe",
        "AWS_SECRET_ACCESS_KEY": "s3cr3tvalue",
        "TORCH_HUB_TOKEN": "s3cr3tvalue",
    }
    assert measured_environment(environment) == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "1", "TORCH_HUB_TOKEN": MASK}
