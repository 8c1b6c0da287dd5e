"""Every command that the documentation shows is accepted, and is run by `make docs-check` or by a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import docs_check, documented
from tools.documented import Block


def commands(page: str) -> list[tuple[str, ...]]:
    return [block.commands for block in documented.in_markdown(page, "page.md")]


def test_every_command_is_accounted_for() -> None:
    found = documented.blocks()
    assert documented.problems(found) == []
    assert documented.stale(found) == []


def test_all_pages_are_read() -> None:
    pages = {block.page for block in documented.blocks()}
    assert {"README.md", "docs/cli.md", "docs/sweeps.md", "examples/README.md", "examples/healthy.py"} <= pages
    assert {f"launch/{path.name}" for path in (documented.ROOT / "launch").iterdir()} <= pages
    every = {command for block in documented.blocks() for command in block.commands}
    assert len(every) > 80


def test_commands_are_found_in_blocks_and_in_sentences() -> None:
    page = (
        "As `make demo` says, `distprof report` is for\n`distprof report\nRUN`; `run.tables` is none.\n\n"
        "```\n$ distprof doctor   # says what\ndistprof: what it said\n```\n\n"
        "    NPROC=8 launch/workstation.sh a.py \\\n        --x '#1'\n    and its output\n\n"
        "| `make test` | b |\n|---|---|\n| c | `x=1` |\n\n"
        "```sh\n# a remark\nfrobnicate --all\n```\n"
    )
    assert commands(page) == [
        ("make demo",),
        ("distprof report RUN",),
        ("distprof doctor",),
        ("NPROC=8 launch/workstation.sh a.py --x '#1'",),
        ("make test",),
        ("frobnicate --all",),
    ]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("sbatch --nodes 9 launch/srun_ranks.sbatch train.py", "nobody runs"),
        ("mpirun -n 4 python train.py", "nobody runs"),
        ("distprof reprot RUN", "is refused: there is no command 'reprot'"),
        ("distprof report RUN --jsn x", "is refused: distprof report: error: unrecognized arguments: --jsn"),
        ("distprof report RUN --json - | distprof merge", "is refused: distprof merge: error"),
        ('eval "$(distprof env --run-directory x)"', "is refused: distprof env: error"),
        ("distprof launch --shedule wait=1 train.py --epochs 3", "is refused: distprof launch: error"),
        ("distprof sweep --budgt 1 loader.num_workers=1 train.py", "is refused: distprof sweep: error"),
    ],
)
def test_a_command_that_nobody_runs_or_that_is_wrong_is_told_with_its_place(command: str, says: str) -> None:
    (line,) = documented.problems([Block("docs/new.md:7", (command,))])
    assert line.startswith("docs/new.md:7: ")
    assert says in line


def test_rules_that_are_about_nothing_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        documented.TESTED, "gone", ("tests/unit/test_docs_check.py::test_gone", "tests/gone.py::test_it")
    )
    told = documented.stale(documented.blocks())
    assert told == [
        "no page shows `gone`",
        "there is no test tests/gone.py::test_it",
        "there is no test tests/unit/test_docs_check.py::test_gone",
    ]


def test_a_shell_runs_what_is_shown_once_and_what_an_eval_armed_in_one() -> None:
    block = Block("a.md:1", ('eval "$(distprof env --run-dir r)"', "srun python train.py", "distprof report r"))
    alone = Block("a.md:9", ("distprof doctor", "sacct -j JOB", "distprof launch --nproc 4 train.py"))
    again = Block("b.md:1", ("distprof launch --nproc 8 train.py",))
    runs = [tuple(run for _, run in piece.commands) for piece in docs_check.pieces([block, alone, again])]
    assert runs == [
        ('eval "$(distprof env --run-dir r)"', "python train.py", "distprof report r"),
        ("distprof doctor",),
        ("distprof launch --nproc 2 train.py",),
    ]


def test_what_fails_is_told_with_the_end_of_its_output(tmp_path: Path) -> None:
    desk = docs_check.Desk(tmp_path, "distprof report distprof-runs/one")
    shown = ("x=3", "echo why; exit $x", "echo later")
    told = desk.run(docs_check.Piece("a.md:1", tuple((command, command) for command in shown)))
    assert told[:2] == ["a.md:1: `echo why; exit $x` ended with nothing: it did not end and not 0", "    why"]
    assert (
        desk.run(docs_check.Piece("a.md:1", (("true", "(exit 4)"),)))[0] == "a.md:1: `(exit 4)` ended with 4 and not 0"
    )
    fails = "distprof report RUN --fail-if 'communication.exposed / steps.steady.median > 0.2'"
    assert desk.run(docs_check.Piece("a.md:1", ((fails, "(exit 3)"),))) == []
    assert desk.run(docs_check.Piece("a.md:1", ((fails, "true"),))) != []
    program = docs_check.Piece(
        "a.md:1", (("Python", "import distprof; distprof.load('distprof-runs/one').tables.zones"),)
    )
    assert desk.python(program) == []
    assert "NameError" in desk.python(docs_check.Piece("a.md:1", (("Python", "unknown"),)))[-1]
