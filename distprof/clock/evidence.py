"""What the recordings tell of the clocks: which moment on one clock came before which moment on another.

Evidence is gathered as *meetings*: in truth, each of a meeting's moments `after` came after each of its moments
`before`. A message is a meeting of two moments, a collective one of all its starts and all its ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from distprof.clock.hull import lower_hull
from distprof.trace.kinds import FROM_ROOT, SYMMETRIC, TO_ROOT
from distprof.trace.tables import Tables

Times = npt.NDArray[np.int64]

# The splits of an all-to-all are not recorded: it binds nobody. Nor do collectives whose root is not known.
BINDING = tuple(kind for kind in SYMMETRIC if kind != "all_to_all")
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
_SYNCHRONISATIONS = r"^(?:cuda|hip)DeviceSynchronize$"
_READ_NS = 2  # two clocks are read in whole ns
# Traces round a start and a duration to 1 us each.
_ROUNDED_NS = 2_000
# What a recorder makes of a device's time, converted to the host's clock, varies by some us.
CONVERTED_NS = 20_000
# Processes of one host that seem to differ by no more read one clock, whatever a recorder's conversions make of it.
_SHARED_WITHIN_NS = 100_000
# A clock that was set while some collectives were on their way seems to differ from itself in these only.
_FEWEST_APART = 2
_LEAST_APART = 0.1
_ONE = ["group", "seq", "kind"]
_MOMENTS = {"meeting": pl.Int64, "clock": pl.Int32, "time": pl.Int64}
_MESSAGES = {"sender": pl.Int32, "sent": pl.Int64, "receiver": pl.Int32, "received": pl.Int64}


@dataclass(frozen=True, slots=True)
class Dial:
    """A clock: that of a host, and which ranks read it, or a rank's device's."""

    ranks: tuple[int, ...]
    device: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the clocks. Times are ns on the clock's own dial.

    Attributes:
        dials: the clocks; elsewhere they are called by their places in it.
        spans: first and last moment that was recorded on each; shape (clocks, 2).
        before, after: the moments of meetings: `meeting`, `clock`, `time`, in the order of meetings. Each meeting has
            some of both.
        ends: ends of symmetric collectives, which are assumed to be one moment: `meeting`, `rank`, `clock`, `time`.
        probes: how many probes there are among them.
        launches, synchronisations: what binds devices to their hosts, as messages: `sender` and `receiver` (clocks),
            `sent` and `received` (when, each on its own clock); of all only the tightest.
        differ: ranks of one host whose moments contradict a common clock.
    """

    dials: list[Dial]
    spans: Times
    before: pl.DataFrame
    after: pl.DataFrame
    ends: pl.DataFrame
    probes: int
    launches: pl.DataFrame
    synchronisations: pl.DataFrame
    differ: list[int]

    def of_host(self) -> dict[int, int]:
        """rank -> the clock that it reads."""
        return {rank: clock for clock, dial in enumerate(self.dials) if not dial.device for rank in dial.ranks}

    def of_device(self) -> dict[int, int]:
        """rank -> its device's clock."""
        return {dial.ranks[0]: clock for clock, dial in enumerate(self.dials) if dial.device}


def gather(tables: Tables) -> Evidence:
    """Find all evidence in the tables."""
    calls = _calls(tables)
    hosts, differ = _hosts(tables, calls)
    devices = sorted(set(tables.kernels["rank"]).intersection(tables.ranks))
    dials = [Dial(ranks) for ranks in hosts] + [Dial((rank,), device=True) for rank in devices]
    clocks = pl.DataFrame(
        [(rank, dial.device, clock) for clock, dial in enumerate(dials) for rank in dial.ranks],
        schema={"rank": pl.Int32, "device": pl.Boolean, "clock": pl.Int32},
        orient="row",
    )
    read = calls.join(clocks, on=["rank", "device"])
    at_collectives = _at_collectives(read)
    befores = [at_collectives.drop_nulls("first").select("meeting", "clock", time="first")]
    afters = [at_collectives.drop_nulls("last").select("meeting", "clock", time=pl.col("last") + _ROUNDED_NS)]
    probes, launches, synchronisations = (
        _messages(parts)
        for parts in (_probes(tables, clocks), _launches(tables, clocks), _synchronisations(tables, clocks))
    )
    number = len(tables.collectives)  # no meeting has it yet
    for messages, rounded in ((probes, _READ_NS), (launches, CONVERTED_NS), (synchronisations, CONVERTED_NS)):
        numbered = messages.with_columns(meeting=pl.int_range(number, number + pl.len()))
        befores.append(numbered.select("meeting", clock="sender", time="sent"))
        afters.append(numbered.select("meeting", clock="receiver", time=pl.col("received") + rounded))
        number += len(messages)
    before, after = _moments(befores), _moments(afters)
    ends = read.filter(pl.col("symmetric")).drop_nulls("end").select("meeting", "rank", "clock", time="end")
    return Evidence(
        dials=dials,
        spans=_spans(tables, clocks, [before, after, ends]),
        before=before,
        after=after,
        ends=ends,
        probes=len(tables.probes),
        launches=launches,
        synchronisations=synchronisations,
        differ=differ,
    )


def with_device(tables: Tables) -> pl.DataFrame:
    """`tables.collectives` with `device`: whether a device carried it out, so that start and end are on its clock."""
    kernels = tables.kernels.filter(pl.col("collective").is_not_null()).select(
        "rank", started="start", device=pl.lit(value=True)
    )
    calls = tables.collectives.join(kernels.unique(), on=["rank", "started"], how="left", maintain_order="left")
    return calls.with_columns(pl.col("device").fill_null(value=False))


def _calls(tables: Tables) -> pl.DataFrame:
    """Collectives that ended on somebody, symmetric ones and those with a known root: `meeting`, `rank`, `device`
    (whether its times are the device's), `start`, `end` (null where it was not seen), `symmetric`, `begins` (whether
    all ends that are bound came after this start) and `ends` (whether this end is bound)."""
    root = pl.col("root")
    rooted = pl.col("kind").is_in([*FROM_ROOT, *TO_ROOT])
    calls = with_device(tables).filter(pl.col("kind").is_in(SYMMETRIC) | rooted)
    # Members that tell different roots tell none.
    known = pl.when(root.drop_nulls().n_unique().over(_ONE) == 1).then(root.drop_nulls().first().over(_ONE))
    calls = calls.with_columns(root=known).filter(~rooted | root.is_not_null())
    numbers = calls.select(_ONE).unique(maintain_order=True).with_row_index("meeting")
    is_root = (root == pl.col("rank")).fill_null(value=False)
    calls = calls.join(numbers, on=_ONE, maintain_order="left").select(
        pl.col("meeting").cast(pl.Int64),
        "rank",
        "device",
        start=pl.coalesce("started", "created"),
        end="ended",
        symmetric=pl.col("kind").is_in(SYMMETRIC),
        begins=pl.col("kind").is_in([*BINDING, *TO_ROOT]) | is_root,
        ends=pl.col("kind").is_in([*BINDING, *FROM_ROOT]) | is_root,
        # Nothing to send may mean that nobody is waited for.
        full=(pl.col("bytes").fill_null(1) > 0) | (pl.col("kind") == "barrier"),
    )
    useful = (
        calls.group_by("meeting")
        .agg(
            pl.len().alias("calls"),
            pl.col("rank").n_unique().alias("ranks"),
            pl.col("end").is_not_null().any().alias("ended"),
            full=pl.col("full").all(),
        )
        # Coalesced collectives may share a number, and are not told apart.
        .filter("ended", pl.col("ranks") > 1, pl.col("calls") == pl.col("ranks"))
        .select("meeting", all_full="full")
    )
    over = pl.col("end").is_null() | (pl.col("end") >= pl.col("start"))
    told = calls.join(useful, on="meeting", maintain_order="left").filter(over)
    return told.with_columns(pl.col("begins", "ends") & pl.col("all_full")).drop("full", "all_full")


def _at_collectives(calls: pl.DataFrame) -> pl.DataFrame:
    """For each collective that binds, and each clock: `first`, before which it was not over on those whose ends are
    bound, and `last`, after which it had begun on those who bind them; null where the clock does not tell."""
    of_clock = (
        calls.filter(pl.col("begins") | pl.col("ends"))
        .group_by("meeting", "clock")
        .agg(first=pl.col("start").filter("begins").max(), last=pl.col("end").filter("ends").min())
        # A clock that contradicts itself tells nothing.
        .filter(pl.col("first").is_null() | pl.col("last").is_null() | (pl.col("first") <= pl.col("last")))
    )
    several = (
        of_clock.group_by("meeting")
        .agg(
            pl.len().alias("clocks"),
            begun=pl.col("first").is_not_null().any(),
            ended=pl.col("last").is_not_null().any(),
        )
        .filter("begun", "ended", pl.col("clocks") > 1)
    )
    return of_clock.join(several.select("meeting"), on="meeting", how="semi")


def _hosts(tables: Tables, calls: pl.DataFrame) -> tuple[list[tuple[int, ...]], list[int]]:
    """Ranks by the clock that they read: one boot of one host has one, unless its ranks' own moments contradict it.

    Of a rank that does not tell its host and boot nothing is taken for granted. The second is the ranks of such hosts.
    """
    told: dict[object, list[int]] = {}
    for rank in tables.ranks:
        facts = tables.facts.get(rank, {})
        host = (facts.get("host"), facts.get("boot_id"))
        told.setdefault(rank if None in host else host, []).append(rank)
    groups = list(told.values())
    number = pl.col("rank").replace_strict(
        {rank: place for place, ranks in enumerate(groups) for rank in ranks}, default=None, return_dtype=pl.Int64
    )
    apart = (
        calls.filter(pl.col("symmetric") & pl.col("begins") & ~pl.col("device"))
        .with_columns(host=number)
        .filter(pl.col("host").is_in([place for place, ranks in enumerate(groups) if len(ranks) > 1]))
        .group_by("meeting", "host")
        .agg(apart=pl.col("start").max() - pl.col("end").min() > _SHARED_WITHIN_NS)
        .group_by("host")
        .agg(pl.col("apart").sum(), pl.col("apart").mean().alias("share"))
        .filter((pl.col("apart") >= _FEWEST_APART) & (pl.col("share") >= _LEAST_APART))
    )
    contradicted = set(apart["host"])
    hosts: list[tuple[int, ...]] = []
    for place, ranks in enumerate(groups):
        hosts += [(rank,) for rank in ranks] if place in contradicted else [tuple(ranks)]
    return sorted(hosts), sorted(rank for place in contradicted for rank in groups[place])


def _probes(tables: Tables, clocks: pl.DataFrame) -> Iterable[pl.DataFrame]:
    """Requests and replies of the clocks' probes as messages: `sender`, `sent`, `receiver`, `received`."""
    of_host = clocks.filter(~pl.col("device"))
    probes = tables.probes.join(of_host.select("rank", own="clock"), on="rank").join(
        of_host.select(peer="rank", theirs="clock"), on="peer"
    )
    yield probes.select(sender="own", sent="sent", receiver="theirs", received="peer_received")
    yield probes.select(sender="theirs", sent="peer_sent", receiver="own", received="received")


def _launches(tables: Tables, clocks: pl.DataFrame) -> Iterable[pl.DataFrame]:
    """A kernel begins after the host began to launch it; as messages."""
    for (rank,), kernels in _single_devices(tables).drop_nulls("launched").partition_by("rank", as_dict=True).items():
        host, device = _clocks_of(clocks, int(rank))
        yield _tightest(host, kernels["launched"].to_numpy(), device, kernels["start"].to_numpy())


def _synchronisations(tables: Tables, clocks: pl.DataFrame) -> Iterable[pl.DataFrame]:
    """What was launched before a synchronisation with the device is over when that returns; as messages."""
    waits = tables.events.filter(pl.col("name").str.contains(_SYNCHRONISATIONS))
    for (rank,), kernels in _single_devices(tables).drop_nulls("launch_end").partition_by("rank", as_dict=True).items():
        host, device = _clocks_of(clocks, int(rank))
        own = waits.filter(pl.col("rank") == rank)
        launched = kernels.sort("launch_end")
        last_end = np.maximum.accumulate(launched["end"].to_numpy())
        place = np.searchsorted(launched["launch_end"].to_numpy(), own["start"].to_numpy(), side="right") - 1
        seen = place >= 0
        yield _tightest(device, last_end[place[seen]], host, own["end"].to_numpy()[seen])


def _single_devices(tables: Tables) -> pl.DataFrame:
    """Kernels of the ranks that use one device: of several, each would be a clock of its own."""
    return tables.kernels.filter(pl.col("device").n_unique().over("rank") == 1)


def _clocks_of(clocks: pl.DataFrame, rank: int) -> tuple[int, int]:
    """The clocks of a rank's host and of its device."""
    own = clocks.filter(pl.col("rank") == rank).sort("device")["clock"]
    return int(own[0]), int(own[-1])


def _tightest(sender: int, sent: Times, receiver: int, received: Times) -> pl.DataFrame:
    """The messages between two clocks that tell all that the others do: the hull of their delays."""
    kept = np.empty(0, dtype=np.int64)
    if len(sent):
        kept = lower_hull((received - received[0]).astype(np.float64), (received - sent).astype(np.float64))
    columns = {"sent": sent[kept], "received": received[kept]}
    return pl.DataFrame(columns).with_columns(sender=pl.lit(sender), receiver=pl.lit(receiver))


def _messages(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    columns = [pl.col(name).cast(dtype) for name, dtype in _MESSAGES.items()]
    messages = pl.concat([pl.DataFrame(schema=_MESSAGES), *(part.select(columns) for part in parts)])
    return messages.filter(pl.col("sender") != pl.col("receiver"))


def _moments(parts: list[pl.DataFrame]) -> pl.DataFrame:
    columns = [pl.col(name).cast(dtype) for name, dtype in _MOMENTS.items()]
    return pl.concat([part.select(columns) for part in parts]).sort("meeting")


def _spans(tables: Tables, clocks: pl.DataFrame, moments: list[pl.DataFrame]) -> Times:
    """First and last moment recorded on each clock."""
    on_device = pl.col("cat").is_in(DEVICE_CATEGORIES)
    of_host = [
        tables.zones.select("rank", "start", "end"),
        tables.steps.select("rank", "start", "end"),
        tables.windows.select("rank", "start", "end"),
        tables.events.filter(~on_device).select("rank", "start", "end"),
        tables.collectives.select("rank", start="created", end="created"),
    ]
    parts = [
        pl.concat(of_host).with_columns(device=pl.lit(value=False)),
        tables.kernels.select("rank", "start", "end", device=pl.lit(value=True)),
    ]
    told = pl.concat(parts).join(clocks, on=["rank", "device"]).select("clock", first="start", last="end")
    met = [part.select("clock", first="time", last="time") for part in moments]
    of_clock = pl.concat([told, *met]).group_by("clock").agg(pl.col("first").min(), pl.col("last").max())
    spans = np.zeros((clocks["clock"].n_unique(), 2), dtype=np.int64)
    spans[of_clock["clock"].to_numpy()] = of_clock.select("first", "last").to_numpy()
    return spans
