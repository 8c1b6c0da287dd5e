"""What private values look like, wherever they stand: paths, addresses, secrets.

Each expression begins where no longer word could have begun, so that searching takes time in proportion to the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address

from distprof.run.secrets import NO_SECRETS, SECRET_VALUES, replace_named
from distprof.scrub.names import REPLACEMENT

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
# Within a path, before its last part, other signs may stand between letters: `/data/a=b/c`.
_FOLDER = rf"{_PATH_PART}(?:[,;=&*?']{_PATH_PART})*/+"
# A path goes on over blanks where it fills a text, or a frame of a stack, from its beginning on.
_WHOLE = r"(?:(?<![^;\n\r])(?:~[\w.-]*)?/+(?=[^\s/])[^;\n\r]*?(?=\([0-9]+\)|:\s|:[0-9]|[;\n\r]|\Z))"
_QUOTED = r"(?:(?<=\")(?:~|\.{0,2}/|[A-Za-z]:\\)[^\"\n]*(?=\")|(?<=')(?:~|\.{0,2}/|[A-Za-z]:\\)[^'\n]*(?='))"
_ABSOLUTE = (
    rf"(?:(?<![\w.$}}])(?:~[\w.-]*|\.{{1,2}}|\$\w{{1,64}}|\$\{{\w{{1,64}}\}})?/+"
    rf"(?:(?:{_FOLDER})+(?:{_PATH_PART})?|{_PATH_PART})(?:[=&*?]{_PATH_PART})*)"
)
_ESCAPED = r"(?:%2[Ff][\w.~+%-]+)"
_WINDOWS = r"(?:(?<![A-Za-z0-9])[A-Za-z]:[\\/](?![\\/\s])[^\s\"'<>|*?;,]*|\\\\[\w.$-]+\\[^\s\"'<>|*?;,]*)"
_RELATIVE = (
    r"(?:(?<![\w.@+/-])(?!torch/)(?:[\w.@+-]+/){2,}[\w.@+-]*|"
    r"(?<![\w.@+/-])(?!torch/)[\w.@+-]+/[\w.@+-]*\.[A-Za-z]\w{0,9}(?!\w))"
)
_IPV4 = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
_FILE = rf"(?:(?<![\w.@+/-])[\w@+-][\w.@+-]*\.(?:{_FILE_ENDINGS})(?![\w.]))"

# The first that matches at a place holds.
_SHAPES = {
    "secret": "|".join(
        (
            SECRET_VALUES.pattern,
            r"(?<=(?i:basic) )(?=[A-Za-z0-9]?[a-z+/]*[A-Z0-9=])[A-Za-z0-9+/=]{8,}",
            r"(?<![A-Za-z0-9])[0-9a-fA-F]{32,}(?![A-Za-z0-9])",
            # Letters of both cases and digits; no underscore, as mangled names have, and no node of autograd.
            r"(?<![\w+/-])(?![A-Za-z0-9]*Backward[0-9]+(?![A-Za-z0-9]))"
            r"(?=[A-Za-z+/-]*[0-9])(?=[A-Z0-9+/-]*[a-z])(?=[a-z0-9+/-]*[A-Z])"
            r"[A-Za-z0-9+-]{32,}(?:/[A-Za-z0-9+-]+)*={0,2}(?![\w+/=-])",
        )
    ),
    "address": r"(?<![A-Za-z0-9])(?!file:)[A-Za-z][A-Za-z0-9+.-]{1,20}://[^\s\"'<>`]+"
    # As git and scp write it; what comes before a line's number is no host.
    r"|(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*:(?![0-9]+(?![\w/]))[^\s\"'<>`:]+",
    "email": r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)*",
    "path": "|".join((r"file://[^\s\"'<>]*", _WHOLE, _QUOTED, _ABSOLUTE, _ESCAPED, _WINDOWS, _RELATIVE, _FILE)),
    "id": r"(?<![A-Za-z0-9])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![A-Za-z0-9])",
    "host": rf"(?<![\w.-])(?:[A-Za-z0-9][A-Za-z0-9-]*\.)+(?:{_DOMAINS})(?![\w-]|\.\w)",
    # With dashes, digits alone are a date.
    "mac": r"(?<![\w:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![\w:])"
    r"|(?<![\w-])(?=[0-9-]*[A-Fa-f])(?:[0-9A-Fa-f]{2}-){5}[0-9A-Fa-f]{2}(?![\w-])",
    "ip": rf"(?<![\w.:])(?:[0-9A-Fa-f]{{0,4}}:){{2,7}}(?:{_IPV4}|[0-9A-Fa-f]{{0,4}})(?![\w:]|\.\w)"
    rf"|(?<![\w.]){_IPV4}(?!\w|\.\w|:[0-9A-Fa-f]*:)",
}
_KINDS = {"mac": "address", "ip": "address"}
_SHAPE = re.compile("|".join(f"(?P<{kind}>{shape})" for kind, shape in _SHAPES.items()))
# Variables and what they are set to, and a path that fills the rest of a text behind a name, whatever blanks are in it.
_VARIABLE = re.compile(r"(?<![\w.-])[A-Z][A-Z0-9_]{2,}=(?:\"([^\"]*)\"|'([^']*)'|([^\s\"',;&]+))")
_FILLS = re.compile(r"(?<![^;,\n])[\w.-]{1,64}=(~?/[^;,\n\r\"']*)\Z")
# A replacement, and signs around it.
_REPLACED = re.compile(rf"\W*(?:(?:{REPLACEMENT.pattern})(?:\W+|\Z))+")


def replace_shapes(text: str, name: Callable[[str, str], str]) -> str:
    """A text with everything replaced that looks private.

    Args:
        name: gives the replacement of a value of a kind.
    """

    def shaped(match: re.Match[str]) -> str:
        kind = match.lastgroup or ""
        if (kind == "ip" and not _is_address(match[0])) or _REPLACED.fullmatch(match[0]):
            return match[0]
        return name(_KINDS.get(kind, kind), match[0])

    return _SHAPE.sub(shaped, _replace_named(text, name))


def _replace_named(text: str, name: Callable[[str, str], str]) -> str:
    """Replace what is given by a name: `password=...`, `--token ...`, `HOME=...`."""

    def given(kind: str) -> Callable[[re.Match[str]], str]:
        def replaced(match: re.Match[str]) -> str:
            whole, value = match[0], match[match.lastindex or 0]
            if not value or value in NO_SECRETS or _REPLACED.fullmatch(value):
                return whole
            begin = match.start(match.lastindex or 0) - match.start()
            return f"{whole[:begin]}{name(kind, value)}{whole[begin + len(value) :]}"

        return replaced

    text = replace_named(text, partial(name, "secret"))
    if "=" in text:
        text = _FILLS.sub(given("path"), _VARIABLE.sub(given("environment"), text), count=1)
    return text


def _is_address(text: str) -> bool:
    """Whether it is an address and no qualified name: `c10d::add` could be either."""
    if ":" in text and text.count(":") < 3 and not re.match(r"fe80|f[cd]|2", text, re.IGNORECASE):
        return False
    try:
        ip_address(text)
    except ValueError:
        return False
    return text not in ("0.0.0.0", "127.0.0.1")
