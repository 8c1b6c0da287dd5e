"""Write the generated pages of `docs/`, or with `--check` say which are out of date.

docs/report.md and docs/report.schema.json come from the dataclasses in `distprof.result`, docs/sweep.md and
docs/sweep.schema.json from those of `distprof.experiment.sweep`, docs/cli.md from `--help`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from distprof.cli.main import COMMANDS
from distprof.experiment.sweep import config
from distprof.experiment.sweep.result import Sweep
from distprof.experiment.sweep.result import json_schema as sweep_schema
from distprof.result import Result, json_schema

ROOT = Path(__file__).parents[1]

CLI_INTRO = """\
# The command line

Generated from `--help` (`make docs`). Options come first, then the script; everything after the script's name is
the script's.
"""

SWEEP_INTRO = """\
# Sweeps: configuration and result

Generated from the dataclasses of `distprof/experiment/sweep/` and from `conf/` (`make docs`). [sweeps.md](sweeps.md)
says how to use them.

## Configuration
"""

_JSON_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def report_page() -> str:
    """docs/report.md: the introduction, then a section for each dataclass, in the order reached from `Result`."""
    return (ROOT / "tools" / "report_intro.md").read_text() + _sections(Result)


def _sections(root: type) -> str:
    """A section for each dataclass, in the order reached from `root`."""
    parts = []
    for cls, places in _places(root).items():
        where = f"At {', '.join(f'`{place}`' for place in places)}." if places else "The file itself."
        parts.append(f"\n## {cls.__name__}\n\n{where} {_docstring(cls)}\n\n")
        parts.append("| field | type | meaning |\n| --- | --- | --- |\n")
        parts += [f"| `{name}` | {_readable(hint)} | {_meaning(hint)} |\n" for name, hint in _fields(cls)]
    return "".join(parts)


def schema_page() -> str:
    """docs/report.schema.json."""
    return json.dumps(json_schema(), indent=2) + "\n"


def sweep_page() -> str:
    """docs/sweep.md: the configuration's fields and groups, then the fields of `sweep.json`."""
    parts = [SWEEP_INTRO]
    for cls, name in (
        (config.SweepConf, ""),
        (config.LoaderConf, "loader"),
        (config.DdpConf, "ddp"),
        (config.MeasureConf, "measure"),
        (config.CaptureConf, "capture"),
    ):
        parts.append(f"\n### {f'`{name}`' if name else 'Top level'}\n\n{_docstring(cls)}\n\n")
        parts.append("| field | default | meaning |\n| --- | --- | --- |\n")
        prefix = f"{name}." if name else ""
        parts += [
            f"| `{prefix}{field.name}` | {_default(field)} | {field.metadata['doc'].replace('|', chr(92) + '|')} |\n"
            for field in dataclasses.fields(cls)
            if dataclasses.is_dataclass(cls) and not dataclasses.is_dataclass(field.default_factory)
        ]
    parts.append("\n## Config groups\n\n| choice | what it is for |\n| --- | --- |\n")
    for path in sorted(config.conf_folder().glob("*/*.yaml")):
        notes = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ") and "@package" not in line]
        parts.append(f"| `{path.parent.name}={path.stem}` | {' '.join(notes)} |\n")
    parts.append("\n## sweep.json\n\n`null` is 'not observed', never zero.\n")
    parts.append(_sections(Sweep).replace("\n## ", "\n### "))
    return "".join(parts)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return {list: "`[]`", dict: "`{}`"}[field.default_factory]  # type: ignore[index]
    if field.default == "???":
        return "required"
    value = getattr(field.default, "name", field.default)
    if value in (None, ""):
        return "`null`" if value is None else ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def cli_page() -> str:
    """docs/cli.md: what `distprof --help` says, and what each of its commands says.

    Raises:
        subprocess.CalledProcessError: a command cannot show its help.
    """
    parts = [CLI_INTRO]
    for command in ([], *([name] for name in COMMANDS)):
        title = " ".join(["distprof", *command])
        help_text = subprocess.run(
            [sys.executable, "-m", "distprof", *command, "--help"],
            env={**os.environ, "COLUMNS": "100"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout
        parts.append(f"\n## {title}\n\n```text\n{help_text.rstrip()}\n```\n")
    return "".join(parts)


PAGES: dict[str, Callable[[], str]] = {
    "docs/report.md": report_page,
    "docs/report.schema.json": schema_page,
    "docs/sweep.md": sweep_page,
    "docs/sweep.schema.json": lambda: json.dumps(sweep_schema(), indent=2) + "\n",
    "docs/cli.md": cli_page,
}


def is_current(name: str) -> bool:
    """Whether a page of `PAGES` is what would be generated now."""
    path = ROOT / name
    return path.is_file() and path.read_text() == PAGES[name]()


def _places(root: type) -> dict[type, list[str]]:
    """Dataclasses in the order reached from `root`, each with its paths in the report (`a.b`, `a.rows[]`)."""
    places: dict[type, list[str]] = {root: []}

    def visit(cls: type, prefix: str) -> None:
        for name, hint in _fields(cls):
            for found, suffix in _dataclasses_in(hint):
                places.setdefault(found, []).append(f"{prefix}{name}{suffix}")
                visit(found, f"{prefix}{name}{suffix}.")

    visit(root, "")
    return places


def _fields(cls: type) -> list[tuple[str, Any]]:
    hints = get_type_hints(cls, include_extras=True)
    return [(field.name, hints[field.name]) for field in dataclasses.fields(cls)]


def _dataclasses_in(hint: Any) -> Iterator[tuple[type, str]]:
    """Dataclasses that a type mentions, with `[]` for each list around them."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        yield hint, ""
    elif get_origin(hint) is not Literal:
        suffix = "[]" if get_origin(hint) is list else ""
        for part in get_args(hint):
            for found, inner in _dataclasses_in(part):
                yield found, suffix + inner


def _readable(hint: Any) -> str:
    """A type in words, with links to the sections of dataclasses.

    Raises:
        TypeError: the type has no place in the report.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _readable(parts[0])
    if origin in (Union, UnionType):
        return " or ".join(_readable(part) for part in sorted(parts, key=lambda part: part is NoneType))
    if origin is Literal:
        return " or ".join(f'`"{value}"`' for value in parts)
    if origin is list:
        return f"list of {_readable(parts[0])}"
    if origin is dict:
        return "object" if parts[1] is Any else f"object of {_readable(parts[1])}"
    if hint is NoneType:
        return "`null`"
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    if hint in _JSON_NAMES:
        return _JSON_NAMES[hint]
    raise TypeError(f"{hint!r} is no type of the report: teach tools/generate_docs.py how to call it.")


def _meaning(hint: Any) -> str:
    """The field's description; a bar would end the table's cell."""
    return " ".join(
        meta.description.replace("|", "\\|")
        for meta in getattr(hint, "__metadata__", ())
        if isinstance(meta, msgspec.Meta) and meta.description
    )


def _docstring(cls: type) -> str:
    lines = (cls.__doc__ or "").strip().splitlines()
    return "\n".join(line.strip() for line in lines)


def main() -> int:
    """Write the pages, or check them; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 and name what is out of date")
    if parser.parse_args().check:
        outdated = [name for name in PAGES if not is_current(name)]
        for name in outdated:
            print(f"{name} is out of date: run `make docs`.", file=sys.stderr)
        return 1 if outdated else 0
    for name, page in PAGES.items():
        (ROOT / name).write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
