"""The commands that the documentation shows, and what stands for each of them.

A command is run by `make docs-check` as it stands, or in a smaller form (`SMALLER`, `INSTEAD`), or a test runs it
(`TESTED`). What is shown is found by markdown's own grammar: lines of code blocks, and code in sentences, that begin
with a program in `PROGRAMS`; in blocks marked `sh` every line.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from distprof.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]

PROGRAMS = (
    "accelerate|bash|cd|curl|deepspeed|distprof|docker|eval|export|git|launch/\\S+|make|mpirun|pip3?|pytest|python3?|"
    "sacct|sbatch|scancel|scontrol|sh|squeue|srun|sudo|torchrun|unset|uv"
)
_STARTS = re.compile(rf"(?:\w+=\S+ )*(?:{PROGRAMS})(?: .*|$)")
# Programs that `make docs-check` runs.
_RUN = re.compile(r"(?:\w+=\S+ )*(?:distprof|eval|launch/workstation\.sh|make|python|torchrun|unset) .*")
# A program, or a subcommand of ours, that a sentence names.
_BEGINNING = re.compile(rf"(?:{PROGRAMS})|distprof (?:{'|'.join(COMMANDS)})")

# Parts of commands that a sentence is about.
MENTIONED = frozenset(
    {
        "distprof report --json -",
        "distprof report --rank FILE=N",
        "git archive",
        "python -I",
        "python -m",
        "sacct -j JOB",  # SLURM's own
        "srun --ntasks-per-node 8 distprof launch",
        "srun distprof launch",
    }
)

_BY_HAND = "tests/integration/test_hosts.py::test_torchrun_by_hand_without_a_shared_disk_and_a_late_second_host"
_NODES = "tests/integration/test_slurm.py::test_a_straggler_on_the_second_node_is_named"
_STAGED = "tests/integration/test_hosts.py::test_a_second_host_that_dies"
# Commands that take SLURM, several hosts or a browser, and the tests that run them there.
TESTED: dict[str, tuple[str, ...]] = {
    "NODE=0 NODES=2 FIRST=host0 NPROC=8 launch/torchrun_by_hand.sh train.py": (_BY_HAND,),
    "NODE=1 NODES=2 FIRST=host0 NPROC=8 launch/torchrun_by_hand.sh train.py": (_BY_HAND,),
    "NODES=2 NPROC=8 PARTITION=gpu launch/submit.sh --slurm gpus_per_node=8 train.py --epochs 3": (_NODES,),
    "NPROC=8 sbatch --nodes 2 --gpus-per-node 8 launch/srun_launch.sbatch train.py --epochs 3": (
        "tests/integration/test_slurm.py::test_each_task_of_an_array_is_a_run_of_its_own",
    ),
    "distprof report OUT/explained/runs/p3-0": (
        "tests/integration/test_sweep.py::test_a_script_that_is_a_hydra_app_is_swept",
    ),
    "distprof report RUN DIR": (_STAGED,),
    "distprof report RUN STAGED": (_STAGED,),
    "distprof report runs/host0 runs/host1": (_BY_HAND,),
    "distprof view all.pftrace --no-browser": (
        "tests/unit/test_cli_timeline.py::test_without_a_browser_the_address_is_printed",
    ),
    "sbatch --nodes 2 --ntasks-per-node 8 --gpus-per-node 8 launch/srun_ranks.sbatch train.py --epochs 3": (
        "tests/integration/test_slurm.py::test_a_task_for_each_rank",
    ),
    "srun --nodes 1 distprof doctor": ("tests/integration/test_slurm.py::test_a_node_says_what_it_can_observe",),
}
# Python in a page, and the test that runs it; what other pages show is run by `make docs-check`.
PYTHON_TESTED = {"docs/tables.md": "tests/unit/test_docs_tables.py::test_five_questions"}


@dataclass(frozen=True)
class Smaller:
    """How commands are made cheap enough to be run; `tests` run what is left out."""

    pattern: str
    by: str
    tests: tuple[str, ...] = ()


SMALLER = (
    Smaller(r"(--nproc-per-node |--nproc |NPROC=)[48]\b", r"\g<1>2"),
    # One repeat of a few steps; that nothing can be concluded from it does not matter here.
    Smaller(
        r"^distprof (validate|overhead) ",
        r"\g<0>--steps 4 --warmup 1 --repeats 1 ",
        (
            "tests/integration/test_experiments.py::test_the_planted_ratio_is_found_and_nothing_is_launched_again",
            "tests/integration/test_experiments.py::test_overhead_is_measured_for_all_ways_of_recording",
        ),
    ),
    # The batch script is printed.
    Smaller(r"^distprof submit (?!.*(--dry-run|--cluster))", r"\g<0>--dry-run ", (_NODES,)),
    # The settings are composed, and nothing is launched.
    Smaller(
        r"^distprof sweep (?!.*--cfg)",
        r"\g<0>--cfg job ",
        (
            "tests/integration/test_sweep.py::test_a_loader_that_needs_workers_is_found_with_its_knee",
            "tests/integration/test_slurm.py::"
            "test_a_sweep_is_an_array_of_jobs_that_alternate_with_the_baseline_on_their_own_host",
        ),
    ),
    # Optuna's plugin is no dependency, not even for tests; docs/sweeps.md says so.
    Smaller(r"hydra/sweeper=optuna hydra.sweeper.n_trials=10 hydra.sweeper.n_jobs=1 ", ""),
    # Targets that take long, or the network, or would run this one again: that they can be made.
    Smaller(r"^make (?!demo$|docs$)", r"make --dry-run "),
    Smaller(r"^python benchmarks/(reading|again)\.py$", r"\g<0> --repeats 1"),
    Smaller(r"^python benchmarks/startup\.py$", r"\g<0> --runs 1"),
    Smaller(r"^python benchmarks/zones\.py$", r"\g<0> --blocks 2"),
    Smaller(r"^python benchmarks/big\.py$", r"\g<0> --gb 0.02"),
)

# What is run instead of commands with dots for the reader to fill in, and of SLURM's; the tests run the latter.
INSTEAD: dict[str, Smaller] = {
    command: Smaller(command, by, tests)
    for command, by, tests in (
        (
            "distprof validate ... --fail-if 'verdict == \"slower\"'",
            "distprof validate --nproc-per-node 4 --candidate 'loader.num_workers=4' --fail-if 'verdict == \"slower\"' "
            "train.py",
            (),
        ),
        (
            "python -m distprof.experiment.sweep -m script=train.py nproc_per_node=4 ...",
            "python -m distprof.experiment.sweep -m script=train.py nproc_per_node=1 loader.num_workers=0,2 "
            "measure.steps=4 measure.warmup=1 measure.repeats=1 measure.explain=false",
            ("tests/unit/test_sweep_hydra.py::test_it_is_a_hydra_app_of_its_own",),
        ),
        (
            "srun python train.py",
            "python train.py",
            ("tests/integration/test_slurm.py::test_a_task_for_each_rank",),
        ),
        (
            "srun --ntasks 8 python train.py",
            "torchrun --standalone --nproc-per-node 2 train.py",
            ("tests/integration/test_slurm.py::test_a_task_for_each_rank",),
        ),
    )
}


@dataclass(frozen=True)
class Block:
    """Commands that stand together; `python`: it is one piece of Python."""

    place: str  # file:line
    commands: tuple[str, ...]
    python: bool = False

    @property
    def page(self) -> str:
        """The file in which they stand."""
        return self.place.rpartition(":")[0]


def blocks(root: Path = ROOT) -> list[Block]:
    """What the documentation shows, in the order of its pages."""
    pages = [root / "README.md", root / "SECURITY.md", root / "examples" / "README.md"]
    pages += sorted((root / "docs").glob("*.md"))
    found = [block for page in pages if page.exists() for block in in_markdown(page.read_text(), _name(page, root))]
    for script in sorted((root / "launch").glob("*")):
        # A recipe's commands stand in its first comment, three blanks in.
        lines = enumerate(script.read_text().splitlines(), 1)
        found += [
            Block(f"{_name(script, root)}:{number}", (plain(line[4:]),))
            for number, line in lines
            if line.startswith("#   ")
        ]
    for script in sorted((root / "examples").glob("*.py")):
        told = ast.get_docstring(ast.parse(script.read_text())) or ""
        found += in_markdown(told, _name(script, root))
    return found


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def in_markdown(text: str, name: str) -> list[Block]:
    """What a page of that name shows."""
    return list(_found(MarkdownIt().enable("table").parse(text), name))


def _found(tokens: list[Token], name: str) -> Iterator[Block]:
    line = 1
    for token in tokens:
        line = token.map[0] + 1 if token.map else line
        place = f"{name}:{line}"
        if token.type in ("fence", "code_block"):
            if token.info == "python":
                yield Block(place, (token.content,), python=True)
            elif commands := tuple(_lines(token.content, every=token.info in ("sh", "bash"))):
                yield Block(place, commands)
        elif token.type == "inline":
            codes = [plain(child.content) for child in token.children or () if child.type == "code_inline"]
            yield from (
                Block(place, (code,)) for code in codes if _STARTS.fullmatch(code) and not _BEGINNING.fullmatch(code)
            )


def _lines(text: str, *, every: bool) -> Iterator[str]:
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        command = plain(line)
        if command and (every or _STARTS.fullmatch(command)):
            yield command


def plain(line: str) -> str:
    """A command without prompt, comment and blanks that only align."""
    return re.sub(r" +", " ", re.sub(r"(?:^|\s+)#(?:\s.*)?$", "", line.strip().removeprefix("$ ")).strip())


def smaller(command: str) -> str:
    """What `make docs-check` runs for a command."""
    text = INSTEAD[command].by if command in INSTEAD else command
    for rule in SMALLER:
        text = re.sub(rule.pattern, rule.by, text)
    return text


def is_run(command: str) -> bool:
    """Whether `make docs-check` runs it, as it stands or smaller."""
    return command not in TESTED and command not in MENTIONED and _RUN.fullmatch(smaller(command)) is not None


def problems(found: list[Block]) -> list[str]:
    """What keeps these blocks from being accounted for; each is a line that says where."""
    told = []
    for block in found:
        for command in () if block.python else block.commands:
            if not (is_run(command) or command in TESTED or command in MENTIONED):
                told.append(f"{block.place}: nobody runs `{command}`: name its test in tools/documented.py")
            elif command not in MENTIONED and (refused := _refused(command)):
                told.append(f"{block.place}: `{command}` is refused: {refused}")
    return told


def stale(found: list[Block]) -> list[str]:
    """Rules here that are about no command any more, and tests that do not exist."""
    shown = {command for block in found for command in block.commands}
    told = [f"no page shows `{command}`" for command in sorted({*TESTED, *MENTIONED, *INSTEAD} - shown)]
    told += [
        f"no command is made smaller by {rule.pattern}"
        for rule in SMALLER
        if not any(re.search(rule.pattern, INSTEAD[text].by if text in INSTEAD else text) for text in shown)
    ]
    of_rules = (rule.tests for rule in (*SMALLER, *INSTEAD.values()))
    tests = {test for named in (*TESTED.values(), *of_rules, tuple(PYTHON_TESTED.values())) for test in named}
    return told + [f"there is no test {test}" for test in sorted(tests) if not _exists(test)]


def _exists(test: str) -> bool:
    file, _, name = test.partition("::")
    path = ROOT / file
    return path.is_file() and any(
        isinstance(node, ast.FunctionDef) and node.name == name for node in ast.parse(path.read_text()).body
    )


def _refused(command: str) -> str | None:
    """What the parser of distprof's command says against it; None: nothing."""
    text = re.sub(r'"\$\((.*?)\)"', r"\1", smaller(command) if command in INSTEAD else command)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="|>&;")
    lexer.whitespace_split = True
    words = list(lexer)
    while "distprof" in words:
        words = words[words.index("distprof") + 1 :]
        end = next((index for index, word in enumerate(words) if word in ("|", ">", ">>", "&&", ";")), len(words))
        if refused := _parsed(words[:end]):
            return refused
    return None


def _parsed(words: list[str]) -> str | None:
    name, *rest = words
    if name == "--version":
        return None
    if name not in COMMANDS:
        return f"there is no command {name!r}"
    parser = importlib.import_module(f"distprof.cli.{name}").build_parser()
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            parser.split(rest) if name == "sweep" else parser.parse_args(rest)
        except SystemExit:
            return said.getvalue().strip()
    return None
