"""Run what the documentation shows (`make docs-check`): every command of README, `docs/`, `examples/` and `launch/`.

    python tools/docs_check.py [--list] [WORD ...]

They run in a copy of the tree that has what the pages assume: a `train.py`, run directories, traces, a git repository.
Which commands run in a smaller form, and which a test runs instead, stands in `tools/documented.py`. Exit status: 0 if
every command is accounted for and ended as the page says, else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.worlds import Delay, World, write
from tools import documented
from tools.documented import ROOT, Block

_TIMEOUT_S = 300
SHARED = Path(os.environ.get("DISTPROF_SHARED") or ROOT.parent / "shared").resolve()
_TAKE_SHARED = ("benchmarks/big.py", "benchmarks/reading.py")  # traces that are too large for the repository
# What commands end with, where that is not 0. The copy's runs have a rank that takes 60 ms longer than its peers.
ENDS = (
    (r"report RUN --fail-if 'communication\.exposed / steps\.steady\.median > 0\.2'", 3),
    (r"report RUN --fail-if 'stragglers\.verdict == \"straggler\"", 3),
    (r"scrub RUN --check", 3),
)
# The reader's own script: an example that nobody holds up. Under plain python it is a world of one.
TRAIN = """\
import os, runpy, sys
for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531"}.items():
    os.environ.setdefault(name, value)
sys.argv[1:] = ["--healthy"]
runpy.run_path("examples/slow_loader.py", run_name="__main__")
"""
# A browser that Python's `webbrowser` starts, and that fetches as Perfetto's page does.
BROWSER = """\
import sys, urllib.request
address = sys.argv[1].partition("url=")[2]
print(len(urllib.request.urlopen(address, timeout=60).read()))
"""
# What README's code takes from the reader's script.
PYTHON = "augment, batch = list, []\n"


@dataclass(frozen=True)
class Piece:
    """What one shell runs: commands as they are shown, each with what is run for it."""

    place: str
    commands: tuple[tuple[str, str], ...]


def pieces(blocks: list[Block]) -> list[Piece]:
    """What is to be run, each thing once. Commands behind an `eval` need its shell; others have one each."""
    found, seen = list[Piece](), set[str]()
    for block in blocks:
        if block.python:
            continue
        commands = tuple(
            (command, documented.smaller(command)) for command in block.commands if documented.is_run(command)
        )
        together = any(command.startswith("eval ") for command in block.commands)
        for part in [commands] if together else [(pair,) for pair in commands]:
            if part and (together or part[0][1] not in seen):
                found.append(Piece(block.place, part))
            seen |= {run for _, run in part}
    return found


def python_pieces(blocks: list[Block]) -> list[Piece]:
    """The Python of each page that no test runs, as one program."""
    pages: dict[str, list[Block]] = {}
    for block in blocks:
        if block.python and block.page not in documented.PYTHON_TESTED:
            pages.setdefault(block.page, []).append(block)
    return [
        Piece(found[0].place, ((f"{page}'s Python", PYTHON + "".join(block.commands[0] for block in found)),))
        for page, found in pages.items()
    ]


class Desk:
    """A copy of the tree with what the pages assume."""

    def __init__(self, folder: Path, text: str) -> None:
        """`text`: all commands, of which those that name run directories say which there must be."""
        self.folder = folder
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        for name in (".venv", ".venv-peers"):
            (folder / name).symlink_to(ROOT / name)
        for name in ("train.py", "train_fused.py", "pkg/__init__.py", "pkg/train.py"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(TRAIN)
        self._record(text)
        (folder / "bin").mkdir()
        (folder / "bin" / "browser.py").write_text(BROWSER)
        # submitit looks for it before it writes a batch script; those that run are run by tests.
        (folder / "bin" / "srun").write_text("#!/bin/sh\nexit 1\n")
        (folder / "bin" / "srun").chmod(0o755)
        self.home = folder / "home"
        (self.home / ".local/share/bash-completion/completions").mkdir(parents=True)
        (self.home / "zsh").mkdir()
        who = ("-c", "user.name=reader", "-c", "user.email=reader@localhost")
        for words in (
            ("init", "--quiet", "-b", "main"),
            ("add", "train.py", "examples"),
            (*who, "commit", "-qm", "train"),
        ):
            subprocess.run(["git", *words], cwd=folder, check=True)

    def _record(self, text: str) -> None:
        """Run directories, and traces of one job, of which some do not tell their ranks."""
        run = self.folder / "RUN"
        world = World(ranks=6, steps=130, windows=((8, 14),), delays=[Delay(rank=2, kind="data_loading", ms=60)])
        write(world, run)
        for name in set(re.findall(r"distprof-runs/[\w-]+", text)):
            shutil.copytree(run, self.folder / name)
        traces = sorted((run / "attempt0").glob("*.pt.trace.json.gz"))
        (self.folder / "traces").mkdir()
        for trace in traces[1:]:
            shutil.copy(trace, self.folder / "traces")
        for source, name in ((traces[0], "traces/a.json"), (traces[0], "a.json"), (traces[1], "b.json")):
            content = json.loads(gzip.decompress(source.read_bytes()))
            content.pop("distributedInfo", None)
            (self.folder / name).write_text(json.dumps(content))

    def run(self, piece: Piece) -> list[str]:
        """Run it; what went wrong, in lines."""
        logs = Path(tempfile.mkdtemp(dir=self.folder))
        # In braces and not in a subshell, so that what `eval` sets is there for the commands behind it.
        script = "".join(
            f"{self._before(command)}{{ {command}\n}} > {logs}/{number}.txt 2>&1; echo $? >> {logs}/ended\n"
            for number, (_, command) in enumerate(piece.commands)
        )
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DISTPROF_", "SLURM_"))},
            "DISTPROF_SHARED": str(SHARED),
            "HOME": str(self.home),
            "PATH": f"{ROOT / '.venv' / 'bin'}:{self.folder / 'bin'}:{os.environ['PATH']}",
            "BROWSER": f"{sys.executable} {self.folder / 'bin' / 'browser.py'} %s &",
            "OMP_NUM_THREADS": "1",
        }
        start = f'set -o pipefail; fpath=(none "{self.home}/zsh")\n'  # zsh's list of folders begins at 1
        with contextlib.suppress(subprocess.TimeoutExpired):  # what did not end has no status
            subprocess.run(
                ["bash", "-c", start + script],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                timeout=_TIMEOUT_S * len(piece.commands),
                check=False,
            )
        ended = logs / "ended"
        statuses = ended.read_text().split() if ended.exists() else []
        told = []
        for number, (shown, command) in enumerate(piece.commands):
            status = statuses[number] if number < len(statuses) else "nothing: it did not end"
            wanted = next((str(end) for pattern, end in ENDS if re.search(pattern, shown)), "0")
            if status != wanted:
                output = logs / f"{number}.txt"
                last = output.read_text(errors="replace").splitlines()[-12:] if output.exists() else []
                told += [
                    f"{piece.place}: `{command}` ended with {status} and not {wanted}",
                    *(f"    {line}" for line in last),
                ]
        return told

    @staticmethod
    def _before(command: str) -> str:
        """Each command finds its output missing, as in a new folder."""
        output = re.search(r" -o (\S+)", command)
        return f"rm -rf {output[1]}; " if output else ""

    def python(self, piece: Piece) -> list[str]:
        """Run a page's Python; what went wrong, in lines."""
        ((shown, code),) = piece.commands
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        return [] if done.returncode == 0 else [f"{piece.place}: {shown} failed", *done.stderr.splitlines()[-12:]]


def main() -> int:
    """Check all, or the commands that hold one of the words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="only say what stands for each command")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only run commands with one of these words in them")
    arguments = parser.parse_args()
    blocks = documented.blocks()
    if arguments.list:
        print("\n".join(_listed(blocks)))
        return 0
    wrong = [*documented.problems(blocks), *documented.stale(blocks)]
    print("\n".join(wrong), flush=True)
    with tempfile.TemporaryDirectory(prefix="docs-check-") as name:
        text = "\n".join(command for block in blocks for command in block.commands)
        desk = Desk(Path(name), text)
        todo = [(piece, desk.run) for piece in pieces(blocks)] + [
            (piece, desk.python) for piece in python_pieces(blocks)
        ]
        for piece, run in todo:
            shown = "; ".join(command for command, _ in piece.commands)
            if arguments.words and not any(word in shown for word in arguments.words):
                continue
            if not SHARED.is_dir() and any(name in shown for name in _TAKE_SHARED) and os.environ.get("CI") != "true":
                print(f"NOT RUN  no shared inputs  {piece.place:24} {shown}", flush=True)
                continue
            begin = time.monotonic()
            told = run(piece)
            wrong += told
            print(
                f"{'FAILED' if told else 'ok':6} {time.monotonic() - begin:5.1f} s  {piece.place:24} {shown}",
                flush=True,
            )
            if told:
                print("\n".join(told), flush=True)
    return 1 if wrong else 0


def _listed(blocks: list[Block]) -> list[str]:
    """What stands for each command, in lines."""
    told = []
    for block in blocks:
        if block.python:
            told.append(f"{block.place}: Python: {documented.PYTHON_TESTED.get(block.page, 'is run')}")
            continue
        for command in block.commands:
            if command in documented.TESTED:
                stands = ", ".join(documented.TESTED[command])
            elif command in documented.MENTIONED:
                stands = "is part of a command"
            else:
                stands = f"is run as `{documented.smaller(command)}`"
            told.append(f"{block.place}: `{command}` {stands}")
    return told


if __name__ == "__main__":
    sys.exit(main())
