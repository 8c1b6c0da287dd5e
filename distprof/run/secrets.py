"""What secrets look like, and keeping them out of the run directory.

Each expression begins where no longer word could have begun, so that searching takes time in proportion to the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

MASK = "***"
NO_SECRETS = (MASK, "none", "null", "true", "false", "None", "True", "False")
# What goes before `key` where that is no key of a dictionary.
_KEYS = (
    "account|aes|anthropic|auth|aws|azure|comet|encrypt(?:ion)?|gcp|google|gpg|hf|hmac|hugging_?face|licen[cs]e|master|"
    "mlflow|neptune|ngc|nvidia|openai|pgp|rsa|secret|service|shared|signing|ssh|ssl|storage|subscription|tls|wandb"
)
SECRET_NAMES = re.compile(
    r"(?i)(token(?!s|i)|secret|passw|pass[-_]?(?:phrase|code|key)|pwd|credential|auth(?!or(?!i[sz]))|cookie|"
    rf"session[-_]?(?:id|key)|(?:api|private|access)[-_]?key|(?:{_KEYS})[-_]?keys?(?![a-z]))"
)
# Names of secrets, and of numbers: `--tokens 512` is none.
_NAMES_OF_BOTH = re.compile(
    r"(?i)(?:^-*|(?:^|[-_.])(?:access|api|auth|bearer|gh|github|gitlab|hf|hub|hugging_?face|refresh|wandb)[-_.]?)tokens$|"
    r"(?:^-*|(?:^|[-_.])(?:admin|db|database|ftp|http|ldap|login|mail|mysql|pg|postgres|proxy|redis|root|smtp|ssh|sudo|"
    r"user|vault)[-_.]?)pass$"
)
_NUMBER = re.compile(r"[-+]?[0-9][0-9_.,]*(?:[eE][-+]?[0-9]+)?[kKmMbBgGtT]?")
_TOLD_BY = ("token", "secret", "pass", "pwd", "credential", "auth", "cookie", "session", "key")  # one is in each name
_HEADERS = re.compile(r"(?i)(?:proxy-)?authori[sz]ation|(?:set-)?cookie")  # whose values are all of the line
_ERRORS = ("Error", "Exception", "Warning")
SECRET_VALUES = re.compile(
    r"(?:gh[pousr]_|github_pat_|hf_|xox[a-z]-|AKIA|ASIA|gl[a-z]{2,4}t-|ya29\.|eyJ[A-Za-z0-9_-]{1,1000}\.)"
    r"[A-Za-z0-9._-]{8,}"
    r"|(?<![A-Za-z0-9])(?:sk-|[spr]k_(?:live|test)_|wandb_v[0-9]_|nvapi-|dckr_[a-z]{2,5}_|xapp-|hvs\.|do[opr]_v1_)"
    r"[A-Za-z0-9._-]{8,}"
    r"|(?<![\w.-])(?:npm_|pypi-|SG\.|AIza)(?=[a-z._-]*[0-9A-Z])[A-Za-z0-9._-]{16,}"
    r"|(?<![A-Za-z0-9])r8_[A-Za-z0-9]{20,}"
    r"|(?<=(?i:bearer) )[\w.~+/=-]{8,}"
    r"|-----BEGIN [^-\n]{1,60}-----[\s\S]*?(?:-----END [^-\n]{1,60}-----|\Z)"
    # AWS: forty characters, slashes among them.
    r"|(?<![\w+/.-])(?=[A-Za-z/+]*[0-9])(?=[A-Z0-9/+]*[a-z])(?=[a-z0-9/+]*[A-Z])[A-Za-z0-9/+]{40}(?![\w+/=.-])"
    # Who asks, in an address: user:password, token, :password; not a host and a port.
    r"|(?<=://)(?!git@)[^\s/:@\"'<>]{0,256}(?::(?![0-9]{1,5}/)[^\s@\"'<>]{0,256})?(?=@)(?<!://)"
)
# `NAME=value`, `NAME: value` and `--name value`, also in JSON, and in JSON that is a text in JSON.
_NAMED = re.compile(r"(?<![\w.-])([\w.-]+)\\*[\"']?(\s?[=:]\s?|\s)(?=\S)")
_GIVEN = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'|\\+[\"']([^\"'\\\n]*)|([^\s\"',;&]+)")
_LINE = re.compile(r"([^\n\r\"'\\]+)")
_CLOSING = ")]}>\\"
# A value may begin with a dash, as options do.
_OPTION = re.compile(r"--[A-Za-z]|-[A-Za-z]$")
# What explains a measurement; everything else in the environment is nobody's business.
_ENVIRONMENT = re.compile(
    r"^(OMP_|MKL_|GOMP_|KMP_|OPENBLAS_|NCCL_|RCCL_|GLOO_|TORCH_|TORCHINDUCTOR_|PYTORCH_|CUDA_|HIP_|ROCR_|HSA_|CUBLAS_|"
    r"ZE_|FI_|UCX_|MALLOC_|LD_PRELOAD$|WORLD_SIZE$|LOCAL_WORLD_SIZE$|TORCHELASTIC_RESTART_COUNT$|SLURM_JOB_ID$|"
    r"SLURM_NNODES$|SLURM_CPUS_PER_TASK$|SLURM_STEP_NUM_TASKS$)"
)


def mask_arguments(arguments: Sequence[str]) -> list[str]:
    """Arguments with those values replaced that look like secrets, or that follow an option which names one."""
    masked = []
    option = ""  # whose value may come next
    for argument in arguments:
        if option and not _OPTION.match(argument):
            masked.append(MASK if _is_secret(option, argument) else mask_text(argument))
            option = ""
            continue
        name, equals, value = argument.partition("=")
        named = argument.startswith("-") or bool(equals)
        option = "" if equals or not argument.startswith("-") else name
        masked.append(f"{name}={MASK}" if named and equals and _is_secret(name, value) else mask_text(argument))
    return masked


def mask_text(text: str) -> str:
    """Text with everything replaced that has the shape of a known kind of secret, or stands under a secret's name."""
    return SECRET_VALUES.sub(MASK, replace_named(text, lambda _: MASK))


def replace_named(text: str, replacement: Callable[[str], str]) -> str:
    """Text with each value replaced that the name before it tells to be secret: `password=...`, `--token ...`."""
    parts: list[str] = []
    done = 0
    for begin, end in _named(text):
        parts += [text[done:begin], replacement(text[begin:end])]
        done = end
    return "".join([*parts, text[done:]])


def _named(text: str) -> Iterator[tuple[int, int]]:
    """Begin and end of each of these values.

    Quotes and brackets around it are no part of it.
    """
    lower = text.lower()
    if not any(part in lower for part in _TOLD_BY):
        return
    at = 0
    while (match := _NAMED.search(text, at)) is not None:
        at = match.end()
        name, sign = match[1], match[2].strip()
        if not (sign or name.startswith("-")) or name.endswith(_ERRORS):
            continue
        always = SECRET_NAMES.search(name) is not None
        # `pass: ...` is said of passes, too, but not in JSON.
        plain = sign == ":" and text[match.end(1)] not in "\"'\\"
        if not always and (plain or _NAMES_OF_BOTH.search(name) is None):
            continue
        given = (_LINE if sign == ":" and _HEADERS.fullmatch(name) else _GIVEN).match(text, at)
        if given is None or given.lastindex is None or (not sign and _OPTION.match(given[0])):
            continue
        begin, end = given.span(given.lastindex)
        value = text[begin:end].rstrip().rstrip(_CLOSING)
        if value and value not in NO_SECRETS and (always or _NUMBER.fullmatch(value) is None):
            at = begin + len(value)
            yield begin, at


def _is_secret(name: str, value: str) -> bool:
    """Whether an option's value is secret."""
    if SECRET_NAMES.search(name):
        return True
    return _NAMES_OF_BOTH.search(name) is not None and _NUMBER.fullmatch(value) is None


def measured_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that explain a measurement, masked."""
    return {
        name: MASK if SECRET_NAMES.search(name) else mask_text(value)
        for name, value in sorted(environment.items())
        if _ENVIRONMENT.match(name)
    }
