"""`distprof submit`: a launch as a job of SLURM, or on this machine on the same path."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.run import get_args_parser

from distprof.cli import launch
from distprof.cli.capture_options import capture_config
from distprof.cli.parser import Parser
from distprof.launcher.spec import new_run_dir, versions
from distprof.run.config import ConfigError
from distprof.run.directory import RunDirectory
from distprof.run.manifest import RunDirectoryError, create_run, read_manifest
from distprof.run.nodes import exit_code
from distprof.run.secrets import mask_arguments

if TYPE_CHECKING:
    from distprof.launcher.submit import Submission

_EPILOG = """examples:
  distprof submit --nodes 2 --nproc-per-node 4 --partition gpu --time 60 train.py --epochs 3
  distprof submit --nodes 2 --nproc-per-node 8 --slurm gpus_per_node=8 --slurm account=lab --wait train.py
  distprof submit --nodes 2 --dry-run train.py
  distprof submit --cluster local --nproc-per-node 2 --wait train.py
"""
_SET_BY_SUBMIT = ("nnodes", "node_rank", "standalone", "master_addr", "master_port", "rdzv_endpoint", "rdzv_backend")


def add_slurm_options(parser: argparse.ArgumentParser) -> None:
    """The options that say where and how the job runs."""
    group = parser.add_argument_group("job")
    group.add_argument(
        "--nodes", type=_positive, default=1, metavar="N", help="Nodes, with one agent each. Default: 1."
    )
    group.add_argument("--partition", metavar="NAME", help="SLURM's partition. Default: the cluster's own.")
    group.add_argument("--time", type=_positive, default=60, metavar="MIN", help="Time limit in minutes. Default: 60.")
    group.add_argument(
        "--signal",
        type=_positive,
        default=60,
        metavar="SECONDS",
        help="So long before the time limit the ranks are told: windows are closed and what is recorded is written. "
        "SLURM may do so up to a minute earlier. Default: 60.",
    )
    group.add_argument(
        "--slurm",
        action="append",
        type=_slurm_option,
        default=[],
        metavar="KEY=VALUE",
        help="Any other option of sbatch, such as gpus_per_node=8, account=lab, exclusive=true; can be repeated.",
    )
    group.add_argument(
        "--cluster",
        choices=("slurm", "local", "debug"),
        default="slurm",
        help="local: the same on this machine, in the background; debug: in this process. Default: slurm.",
    )
    group.add_argument("--dry-run", action="store_true", help="Print the batch script and submit nothing.")
    group.add_argument(
        "--wait",
        action="store_true",
        help="Show the job's state and output until it is over, then end with the script's exit code.",
    )


def build_parser() -> launch.LaunchParser:
    """`distprof launch`'s options, and the job's."""
    parser = launch.build_parser(
        prog="distprof submit",
        description="Submit a training to SLURM: on each node the same as `distprof launch`, with the rendezvous on "
        "the job's first host. The job makes the report when its ranks have ended.",
        epilog=_EPILOG,
    )
    add_slurm_options(parser)
    return parser


def main(argv: list[str]) -> int:
    """Submit. Exit status 0; with `--wait` the script's own; 2 with one line if nothing could be submitted."""
    from distprof.launcher.submit import SubmitError

    parser = build_parser()
    arguments = parser.parse_args(argv)
    options, script = _launch_words(argv, len(arguments.training_script_args))
    defaults = get_args_parser().parse_args(["script"])
    for name in _SET_BY_SUBMIT:
        if getattr(arguments, name) != getattr(defaults, name):
            parser.error(f"--{name.replace('_', '-')} is set by the job: give --nodes, and leave it out")
    if arguments.cluster != "slurm" and arguments.nodes > 1:
        parser.error(f"--cluster {arguments.cluster} is this machine alone: give --nodes 1")
    launch.build_parser(prog=parser.prog).parse_args(
        [*options, *script]
    )  # an abbreviation of one of the job's options is refused here
    try:
        if arguments.dry_run:
            print(_submission(arguments, options, script, _planned(arguments)).script_text(), end="")
            return 0
        directory = _created(arguments, argv)
        return _submit(_submission(arguments, options, script, directory), wait=arguments.wait)
    except (RunDirectoryError, ConfigError, SubmitError) as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{error.filename} cannot be written ({error.strerror}): give another --run-dir")


def _launch_words(argv: list[str], script_arguments: int) -> tuple[list[str], list[str]]:
    """The command line without the job's options: `distprof launch`'s, and the script with its own."""
    options, rest = argv[: len(argv) - script_arguments - 1], argv[len(argv) - script_arguments - 1 :]
    only_ours = Parser(prog="distprof submit", add_help=False, allow_abbrev=False)
    add_slurm_options(only_ours)
    _, others = only_ours.parse_known_args(options)
    return others, rest


def _planned(arguments: argparse.Namespace) -> RunDirectory:
    """The run directory that would be made."""
    path = arguments.run_dir or Path("distprof-runs") / f"<time>-{Path(arguments.training_script).stem}"
    return RunDirectory(path.absolute())


def _created(arguments: argparse.Namespace, argv: list[str]) -> RunDirectory:
    """Make the run directory; the nodes join it.

    Raises:
        RunDirectoryError, ConfigError, OSError: it cannot be made.
    """
    run_dir = arguments.run_dir or new_run_dir(arguments.training_script, time.strftime("%Y%m%d-%H%M%S"))
    per_node = str(arguments.nproc_per_node)
    directory, _ = create_run(
        run_dir.absolute(),
        run_id=None,
        command=mask_arguments(["distprof", "submit", *argv]),
        world_size=arguments.nodes * int(per_node) if per_node.isdecimal() else None,
        config=asdict(capture_config(arguments, run_dir, None)),
        versions=versions(),
    )
    directory.submitted.mkdir(mode=0o700)  # what submitit keeps there holds the command line as it is, secrets too
    return directory


def _submission(
    arguments: argparse.Namespace, options: list[str], script: list[str], directory: RunDirectory
) -> Submission:
    from distprof.launcher.submit import Submission

    run_id = read_manifest(directory).run_id if directory.manifest.exists() else "<id>"
    # A job of SLURM makes the report in its batch script, when the tasks of all nodes have ended.
    ours = ["--run-dir", str(directory.path), "--run-id", arguments.run_id or run_id]
    ours += ["--no-report"] if arguments.cluster == "slurm" and not arguments.no_report else []
    return Submission(
        directory=directory,
        script=arguments.training_script,
        words=[sys.executable, "-m", "distprof", "launch", *options, *ours, *script],
        cluster=arguments.cluster,
        nodes=arguments.nodes,
        minutes=arguments.time,
        partition=arguments.partition,
        signal_s=arguments.signal,
        slurm=dict(arguments.slurm),
        report=not arguments.no_report,
    )


def _submit(submission: Submission, *, wait: bool) -> int:
    from distprof.launcher.submit import SubmitError

    directory = submission.directory
    try:
        job = submission.submit()
    except SubmitError:
        _discard(directory)
        raise
    print(f"run:  {directory.path}", flush=True)
    if submission.cluster == "debug":
        error = job.exception()
        return 0 if error is None else exit_code(directory)
    print(f"job:  {job.job_id}", flush=True)
    after = None
    if submission.cluster == "slurm" and submission.report:
        try:
            after = submission.report_afterwards(job.job_id)
        except SubmitError as error:
            print(f"distprof: the job makes the report unless it is killed; {error}", file=sys.stderr)
    if not wait:
        print(_how_to_look(submission, job.job_id, after))
        return 0
    return _wait(submission, job, after)


def _discard(directory: RunDirectory) -> None:
    """Remove what was made for a job that is not to be, so that the directory can be given again."""
    shutil.rmtree(directory.submitted, ignore_errors=True)
    with suppress(OSError):
        directory.manifest.unlink()
        directory.path.rmdir()


def _how_to_look(submission: Submission, job_id: str, after: str | None) -> str:
    folder = submission.directory.submitted
    lines = [f"log:  {folder / f'{job_id}_0_log.out'}"]
    if submission.cluster == "slurm":
        lines += [f"look: squeue --jobs {job_id}", f"end:  scancel {job_id}"]
    if after is not None:
        lines.append(f"then: the job makes the report; job {after} does if it is killed")
    return "\n".join([*lines, f"show: distprof report {submission.directory.path}"])


def _wait(submission: Submission, job: Any, after: str | None) -> int:
    from distprof.launcher.following import UNKNOWN, Log, State, follow, slurm_state
    from distprof.launcher.submit import SubmitError, run_command

    def state() -> State:
        if submission.cluster == "slurm":
            return slurm_state(job.job_id)
        return State("RUNNING" if not job.done() else "COMPLETED")

    def write(stream: Any) -> Any:
        return lambda text: (stream.write(text), stream.flush())

    tasks = [job.task(number) for number in range(submission.nodes)] if submission.nodes > 1 else [job]
    logs = [Log(each.paths.stdout, write(sys.stdout)) for each in tasks]
    logs += [Log(each.paths.stderr, write(sys.stderr)) for each in tasks]
    try:
        last = follow(
            state, logs, lambda text: print(f"distprof: job {job.job_id}: {text}", file=sys.stderr, flush=True)
        )
    except KeyboardInterrupt:
        print(f"distprof: the job goes on\n{_how_to_look(submission, job.job_id, after)}", file=sys.stderr)
        raise
    if submission.report and submission.cluster == "slurm" and not submission.reported(job.job_id).exists():
        launch.report(submission.directory)
        if after is not None:
            try:
                run_command(["scancel", after])
            except SubmitError as error:
                print(f"distprof: job {after} makes the report once more: {error}", file=sys.stderr)
    if last.name == UNKNOWN:
        print(f"distprof: how the job ended is not known: {last.reason}", file=sys.stderr)
    code = exit_code(submission.directory)
    return code if code or last.name == "COMPLETED" else 1


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text[:9]) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _slurm_option(text: str) -> tuple[str, int | str | bool]:
    key, equals, value = text.partition("=")
    if not equals or not key.replace("-", "").replace("_", "").isalnum():
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE, such as gpus_per_node=8")
    key = key.lstrip("-").replace("-", "_")
    if value in ("true", "false"):
        return key, value == "true"
    return key, int(value) if value.isascii() and value.isdecimal() else value
