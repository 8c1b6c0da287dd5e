"""How a run came to its end, by what the launcher's agents wrote; they may write after the recordings were read."""

from __future__ import annotations

from typing import Any

from distprof.run.directory import RunDirectory
from distprof.run.nodes import Node, end_of, read_nodes
from distprof.trace.joined import attempts_of
from distprof.trace.loaded import Run
from distprof.trace.notes import Note

_SIGNALLED = "SignalException"


def nodes_of(run: Run) -> list[Node]:
    """The agents of a run, of all its directories, with attempts numbered as the run's are."""
    directories = [run.directory, *map(RunDirectory, run.beside)]
    if len(directories) == 1:
        return read_nodes(run.directory)
    attempts, _ = attempts_of(directories)
    numbers = {(place.path, number): attempt.number for attempt in attempts for place, number in attempt.places}
    nodes = []
    for directory in directories:
        for node in read_nodes(directory):
            for row in node.attempts:
                row["attempt"] = numbers.get((directory.path, row["attempt"]), row["attempt"])
            nodes.append(node)
    return nodes


def ending(run: Run) -> dict[str, Any]:
    """How the attempt that was read ended, in the form of the manifest's `ended`; empty where nobody says."""
    return {} if run.manifest is None else end_of(run.manifest, nodes_of(run), run.attempt)


def ending_notes(run: Run) -> list[Note]:
    """What was cut off, and by what; and the attempts that are not in the report."""
    if run.manifest is None:
        return []
    nodes = nodes_of(run)
    notes = []
    for number in run.attempts:
        if number != run.attempt:
            which = "an earlier" if number < run.attempt else "a later"
            text = f"{which} attempt: {_how(nodes, number)}; what it recorded is kept, and is not in this report"
            notes.append(Note(None, run.directory.attempt(number), None, text))
    of_attempt = [node for node in nodes if node.attempt == run.attempt]
    if not of_attempt:
        return notes
    told = sorted({row["signal"] for node in of_attempt for row in node.told})
    if told:
        text = f"the scheduler sent {' and '.join(told)} to the launcher: what it recorded may end early"
        notes.append(Note(None, run.directory.manifest, None, text))
    hosts = sorted({node.host for node in of_attempt if node.ended is None})
    if hosts:
        text = (
            f"the launcher on {', '.join(hosts)} has left no end: it is running, or was killed with its ranks (the job "
            "was cancelled or out of time, or the host failed)"
        )
        notes.append(Note(None, run.directory.manifest, None, text))
    return notes


def _how(nodes: list[Node], number: int) -> str:
    """How an attempt ended, in words."""
    there = [node for node in nodes if any(row["attempt"] == number for row in node.attempts)]
    if not there:
        return "nobody says how it ended"
    if any(node.attempt != number for node in there):
        return "its ranks were started anew by the launcher"
    told = sorted({row["signal"] for node in there for row in node.told})
    if told:
        return f"the scheduler ended it ({', '.join(told)})"
    errors = [node.ended["error"] for node in there if node.ended and node.ended.get("error")]
    if errors:
        return "it was ended by a signal" if str(errors[0]).startswith(_SIGNALLED) else str(errors[0])
    return "its launcher was killed" if any(node.ended is None for node in there) else "it came to its end"
