"""The run directory's layout. This is the only place that knows a path.

<run>/run.json                                  manifest
<run>/nodes/<host>-<pid>.json                   an agent of the launcher: which ranks it started, and how they ended
<run>/submit/                                   batch script, logs and pickles of `distprof submit`
<run>/attempt0/rendezvous.json                  which rendezvous it was
<run>/attempt0/rank00003.json                   the rank's facts
<run>/attempt0/rank00003.zones.jsonl            its zones, the whole run
<run>/attempt0/rank00003.collectives.jsonl      its flight recorder, the whole run
<run>/attempt0/rank00003.clock.jsonl            its exchanges with the reference rank, which compare their clocks
<run>/attempt0/rank00003.window0.pt.trace.json.gz   its Kineto trace (`.json` until it is compressed)
<run>/attempt0/rank00003-<host>-<pid>.*             another process that claimed the same rank
<run>/report.json, report.html, timeline.json.gz
<run>/digest/                                   what was read, so that it need not be read again
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_RANK_FACTS = re.compile(r"^rank(\d{5,})\.json$")
_APART = re.compile(r"^rank(\d{5,})-.+-\d+\.json$")
_ATTEMPT = re.compile(r"^attempt(\d+)$")
_WINDOW = re.compile(r"^rank(\d{5,})\.window(\d+)\.pt\.trace\.json(\.gz)?$")


@dataclass(frozen=True, slots=True)
class RankFiles:
    """The files of one rank in one attempt."""

    folder: Path
    rank: int
    apart: str = ""

    @property
    def _stem(self) -> str:
        return f"rank{self.rank:05d}{self.apart}"

    def kept_apart(self, host: str, pid: int) -> RankFiles:
        """Files of another process that took itself for the same rank; they are kept, and not analysed."""
        return RankFiles(self.folder, self.rank, f"-{re.sub(r'[^A-Za-z0-9]', '-', host)}-{pid}")

    @property
    def facts(self) -> Path:
        """The rank's facts."""
        return self.folder / f"{self._stem}.json"

    @property
    def zones(self) -> Path:
        """The zone timeline of the whole run."""
        return self.folder / f"{self._stem}.zones.jsonl"

    @property
    def collectives(self) -> Path:
        """The flight recorder's entries of the whole run."""
        return self.folder / f"{self._stem}.collectives.jsonl"

    @property
    def clock(self) -> Path:
        """The clock probes' samples; none of the reference rank, which is asked and does not ask."""
        return self.folder / f"{self._stem}.clock.jsonl"

    def window(self, index: int, *, compressed: bool = True) -> Path:
        """The Kineto trace of one window."""
        return self.folder / f"{self._stem}.window{index}.pt.trace.json{'.gz' if compressed else ''}"

    def windows(self) -> dict[int, Path]:
        """Kineto traces that are there, by window; a compressed one wins over its uncompressed twin."""
        found: dict[int, Path] = {}
        for path in sorted(self.folder.glob(f"{self._stem}.window*.pt.trace.json*")):
            match = _WINDOW.match(path.name)
            if match:
                found[int(match[2])] = path  # '.json' sorts before '.json.gz'
        return found


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A run directory, whether it exists yet or not."""

    path: Path

    @property
    def name(self) -> str:
        """The directory's own name."""
        return self.path.resolve().name

    @property
    def manifest(self) -> Path:
        """`run.json`."""
        return self.path / "run.json"

    @property
    def nodes(self) -> Path:
        """The folder of what the launcher's agents wrote, one file each."""
        return self.path / "nodes"

    @property
    def submitted(self) -> Path:
        """The folder of `distprof submit`'s batch script, logs and pickles."""
        return self.path / "submit"

    @property
    def report_json(self) -> Path:
        """The report as data."""
        return self.path / "report.json"

    @property
    def report_html(self) -> Path:
        """The report as a page."""
        return self.path / "report.html"

    @property
    def timeline(self) -> Path:
        """All ranks on one clock, for Perfetto."""
        return self.path / "timeline.json.gz"

    @property
    def digest(self) -> Path:
        """The folder of the tables that the recordings were read into."""
        return self.path / "digest"

    def attempt(self, number: int) -> Path:
        """The folder of one attempt."""
        return self.path / f"attempt{number}"

    def rendezvous(self, number: int) -> Path:
        """What identifies an attempt, on all hosts."""
        return self.attempt(number) / "rendezvous.json"

    def attempts(self) -> list[int]:
        """Attempts that left a folder, ascending."""
        if not self.path.is_dir():
            return []
        matches = (_ATTEMPT.match(entry.name) for entry in self.path.iterdir() if entry.is_dir())
        return sorted(int(match[1]) for match in matches if match)

    def rank(self, attempt: int, rank: int) -> RankFiles:
        """The files of one rank."""
        return RankFiles(self.attempt(attempt), rank)

    def ranks(self, attempt: int) -> list[RankFiles]:
        """Ranks that left their facts in an attempt, ascending."""
        folder = self.attempt(attempt)
        if not folder.is_dir():
            return []
        matches = (_RANK_FACTS.match(entry.name) for entry in folder.iterdir())
        return [RankFiles(folder, rank) for rank in sorted(int(match[1]) for match in matches if match)]

    def kept_apart(self, attempt: int) -> dict[Path, int]:
        """Facts of processes that took themselves for a rank that another one had claimed -> that rank."""
        folder = self.attempt(attempt)
        entries = sorted(folder.iterdir()) if folder.is_dir() else []
        return {path: int(match[1]) for path in entries if (match := _APART.match(path.name))}
