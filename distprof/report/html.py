"""What pages of ours are made with: the template's environment, and what keeps a page harmless.

A page needs no network, and nothing in it reaches for one. Two things keep names out of traces harmless: whatever a
template shows is cleaned and escaped, and the page's policy lets no script run but those that it was made with, by
their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files

from jinja2 import BaseLoader, Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from distprof.report import words


def environment(package: str = "distprof.report") -> Environment:
    """Templates of a package, which may import the macros of `distprof.report`."""
    # `finalize` sees each value before it is escaped, so that no text of the result can be forgotten.
    return Environment(
        loader=_loader(package),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _shown(value: object) -> str | Markup:
    if isinstance(value, Markup):
        return value
    if value is None:
        return words.NULL
    if isinstance(value, bool):
        return words.yes_no(value)
    return words.clean(str(value))


def _loader(package: str) -> BaseLoader:
    def load(name: str) -> str | None:
        for place in (package, "distprof.report"):
            if (files(place) / name).is_file():
                return part(name, place)
        return None

    return FunctionLoader(load)


def part(name: str, package: str = "distprof.report") -> str:
    """The text of a file beside the code."""
    return (files(package) / name).read_text(encoding="utf-8")


def plotly() -> str:
    """Plotly's own script."""
    from plotly.offline import get_plotlyjs  # only a page needs it

    script: str = get_plotlyjs()
    return script


def policy(scripts: list[str]) -> str:
    """The page's content security policy: no requests, and these scripts only. Plotly sets styles and draws images."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{code}'" for code in hashes) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def as_json(value: object) -> Markup:
    """JSON that no parser of HTML takes for markup, whatever its texts contain."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII only
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
