"""What private values look like, wherever they stand: paths, addresses, secrets.

Each expression begins where no longer word could have begun, so that searching takes time in proportion to the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_address

from distprof.run.secrets import SECRET_NAMES, SECRET_VALUES

_FILE_ENDINGS = (
    "py|pyc|pyi|sh|bash|c|cc|cpp|cu|h|hpp|rs|json|jsonl|ya?ml|toml|ini|cfg|conf|env|txt|md|log|out|err|csv|tsv|parquet|"
    "arrow|pt|pth|ckpt|safetensors|onnx|bin|npy|npz|pkl|pickle|h5|hdf5|tfrecord|db|sqlite|ipynb|so|whl|gz|tgz|zip|tar|"
    "zst|xz|bz2|pem|key|crt|png|jpe?g|mp4|wav"
)
_DOMAINS = (
    "com|org|net|edu|gov|mil|int|info|biz|io|ai|dev|app|cloud|internal|intranet|intra|local|localdomain|lan|corp|"
    "private|cluster|test|example|invalid|eu|uk|us|ca|au|de|at|ch|fr|es|it|nl|be|se|no|fi|dk|pl|cz|ru|jp|cn|tw|kr|sg|br"
)
_PATH_PART = r"[^\s/:\"'`()<>|,;=&*?\[\]{}\\]+"
# A path goes on over blanks where it fills a text, or a frame of a stack, from its beginning on.
_WHOLE = r"(?:(?<![^;\n\r])(?:~[\w.-]*)?/(?=[^\s/])[^;\n\r]*?(?=\([0-9]+\)|:\s|:[0-9]|[;\n\r]|\Z))"
_QUOTED = r"(?:(?<=\")(?:~|\.{0,2}/|[A-Za-z]:\\)[^\"\n]*(?=\")|(?<=')(?:~|\.{0,2}/|[A-Za-z]:\\)[^'\n]*(?='))"
_ABSOLUTE = rf"(?:(?<![\w.])(?:~[\w.-]*|\.{{1,2}})?/(?:{_PATH_PART}/*)+)"
_WINDOWS = r"(?:(?<![A-Za-z0-9])[A-Za-z]:[\\/](?![\\/\s])[^\s\"'<>|*?;,]*|\\\\[\w.$-]+\\[^\s\"'<>|*?;,]*)"
_RELATIVE = (
    r"(?:(?<![\w.@+/-])(?!torch/)(?:[\w.@+-]+/){2,}[\w.@+-]*|"
    r"(?<![\w.@+/-])(?!torch/)[\w.@+-]+/[\w.@+-]*\.[A-Za-z]\w{0,9}(?!\w))"
)
_FILE = rf"(?:(?<![\w.@+/-])[\w@+-][\w.@+-]*\.(?:{_FILE_ENDINGS})(?![\w.]))"

# The first that matches at a place holds.
_SHAPES = {
    "secret": "|".join(
        (
            SECRET_VALUES.pattern,
            r"-----BEGIN [^-\n]{1,60}-----[\s\S]*?(?:-----END [^-\n]{1,60}-----|\Z)",
            r"(?<=[Bb]earer )[\w.~+/=-]{8,}|(?<=[Bb]asic )[A-Za-z0-9+/=]{8,}",
            r"(?<![A-Za-z0-9])[0-9a-fA-F]{32,}(?![A-Za-z0-9])",
            # Letters of both cases and digits; no underscore, as mangled names have, and no node of autograd.
            r"(?<![\w+/=-])(?![A-Za-z0-9]*Backward[0-9]+(?![A-Za-z0-9]))(?=[A-Za-z0-9+/=-]*[0-9])(?=[A-Za-z0-9+/=-]*[a-z])(?=[A-Za-z0-9+/=-]*[A-Z])"
            r"[A-Za-z0-9+=-]{32,}(?:/[A-Za-z0-9+=-]+)*(?![\w+/=-])",
        )
    ),
    "address": r"(?<![A-Za-z0-9])(?!file:)[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s\"'<>`]+",
    "email": r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*",
    "path": "|".join((r"file://[^\s\"'<>]*", _WHOLE, _QUOTED, _ABSOLUTE, _WINDOWS, _RELATIVE, _FILE)),
    "id": r"(?<![A-Za-z0-9])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![A-Za-z0-9])",
    "host": rf"(?<![\w.-])(?:[A-Za-z0-9][A-Za-z0-9-]*\.)+(?:{_DOMAINS})(?![\w-]|\.\w)",
    "mac": r"(?<![\w:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![\w:])",
    "ip": r"(?<![\w.:])(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4})(?![\w:]|\.\w)",
}
_KINDS = {"mac": "address", "ip": "address"}
_SHAPE = re.compile("|".join(f"(?P<{kind}>{shape})" for kind, shape in _SHAPES.items()))
# `NAME=value` and `--name value`, where the name tells that the value is secret, and variables.
_NAMED = re.compile(r"(?<![\w.-])([\w.-]+)[\"']?(\s?[=:]\s?|\s)(?=\S)")
_GIVEN = re.compile(r"[^\s\"',;&]+|\"([^\"]*)\"|'([^']*)'")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{2,}")
_NO_SECRETS = ("***", "none", "null", "true", "false", "None", "True", "False")


def replace_shapes(text: str, name: Callable[[str, str], str]) -> str:
    """A text with everything replaced that looks private.

    Args:
        name: gives the replacement of a value of a kind.
    """

    def shaped(match: re.Match[str]) -> str:
        kind = match.lastgroup or ""
        if kind == "ip" and not _is_address(match[0]):
            return match[0]
        return name(_KINDS.get(kind, kind), match[0])

    return _SHAPE.sub(shaped, _replace_named(text, name))


def _replace_named(text: str, name: Callable[[str, str], str]) -> str:
    """Replace what is given by a name: `password=...`, `--token ...`, `HOME=...`."""
    parts: list[str] = []
    done = at = 0
    while (match := _NAMED.search(text, at)) is not None:
        at = match.end()
        option, sign = match[1], match[2]
        secret = bool(SECRET_NAMES.search(option)) and (bool(sign.strip()) or option.startswith("-"))
        variable = sign == "=" and _VARIABLE.fullmatch(option) is not None
        value = _GIVEN.match(text, at) if secret or variable else None
        if value is not None and value[0] not in _NO_SECRETS:
            parts += [text[done:at], name("secret" if secret else "environment", value[0])]
            done = at = value.end()
    return "".join([*parts, text[done:]])


def _is_address(text: str) -> bool:
    """Whether it is an address and no qualified name: `c10d::add` could be either."""
    if ":" in text and text.count(":") < 3 and not re.match(r"fe80|f[cd]|2", text, re.IGNORECASE):
        return False
    try:
        ip_address(text)
    except ValueError:
        return False
    return text not in ("0.0.0.0", "127.0.0.1")
