"""Results made by hand, for tests of what is shown."""

from __future__ import annotations

from dataclasses import replace

from distprof.result import (
    BreakdownRow,
    Bucket,
    Clock,
    ClockRow,
    CollectiveKind,
    Communication,
    Conditions,
    DataLoading,
    Excluded,
    Finding,
    GanttBar,
    GanttStep,
    GradientOverlap,
    Group,
    Kernel,
    Lateness,
    Memory,
    NotObserved,
    Operator,
    Overhead,
    RankCommunication,
    RankLateness,
    RankLoading,
    RankRow,
    RankSteps,
    Result,
    RunInfo,
    Spread,
    Steps,
    Straggler,
    Stragglers,
    TransferModel,
    Window,
)

HOSTILE = "<script>alert(1)</script>[red]x[/red]\x1b[31m\x1b]0;pwned\x07\u202eevil\x00\nsecond\ud800"


def healthy(world_size: int = 4) -> Result:
    """Nobody holds anybody up."""
    ranks = list(range(world_size))
    return Result(
        run=RunInfo(
            name="20260101-train",
            id="abc",
            command=["train.py", "--epochs", "2 3"],
            world_size=world_size,
            nnodes=1,
            backend="gloo",
            device="cpu",
            torch="2.13.0",
            attempt=0,
            attempts=[0],
            wall_s=12.5,
        ),
        conditions=Conditions(
            loader=[{"name": "DataLoader#0", "batch_size": 32, "num_workers": 2, "pin_memory": False}],
            ddp=[{"name": "DistributedDataParallel#0", "bucket_cap_mb": 25}],
        ),
        ranks=[
            RankRow(
                rank=rank,
                host="node-a",
                device="cpu",
                status="complete",
                trace=f"attempt0/rank{rank:05d}.window0.pt.trace.json.gz",
                requested=["cpu"],
                observed=["cpu"],
            )
            for rank in ranks
        ],
        windows=[Window(index=0, ranks=ranks, steps=[8, 9, 10, 11, 12])],
        groups=[Group(id=0, name="0", desc="default_pg", members=ranks)],
        clock=Clock(
            method="one boot id on all ranks",
            verdict="same_host",
            reference_rank=0,
            ranks=[ClockRow(rank=rank, offset_us=0.0) for rank in ranks],
        ),
        steps=Steps(
            source="optimizer",
            boundary="the return of SGD#0.step",
            first=812.34,
            micro_steps=1.0,
            samples_per_s=1271.5,
            steady=Spread(count=38, median=52.9, p10=50.1, p90=55.5),
            per_rank=[RankSteps(rank=rank, first=812.34, count=38, median=52.9, p10=50.1, p90=55.5) for rank in ranks],
            excluded=Excluded(first=812.34, export=201.0),
        ),
        totals=[],
        breakdown=[
            BreakdownRow(
                rank=rank,
                basis="window",
                steps_used=5,
                step=53.11,
                data_wait=2.5,
                h2d=None,
                compute=41.2,
                comm_wait=1.21,
                comm_transfer=4.2,
                comm_exposed=5.41,
                comm_overlapped=3.3,
                sync_wait=None,
                idle=None,
                other=4.0,
            )
            for rank in ranks
        ],
        communication=Communication(
            basis="zones",
            steps_used=38,
            collectives=84,
            matched=84,
            unmatched=0,
            unclassified=0,
            total=8.71,
            exposed=5.41,
            overlapped=3.3,
            wait=1.9,
            transfer=6.81,
            per_rank=[
                RankCommunication(rank=rank, total=8.71, exposed=5.41, wait=1.9, transfer=6.81) for rank in ranks
            ],
            by_kind=[CollectiveKind(kind="all_reduce", group=0, bytes=1048576, count=80, wait=1.2, transfer=None)],
            buckets=[
                Bucket(
                    model="DistributedDataParallel#0",
                    bucket=bucket,
                    group=0,
                    bytes=1048576 + bucket,
                    params=["net.0.weight"],
                    count=38,
                    wait=1.2,
                    transfer=3.45 if bucket else None,
                    last_rank=None,
                )
                for bucket in (0, 1)
            ],
            gradients=GradientOverlap(
                steps_used=5, total=8.0, overlapped=3.3, exposed=4.7, wait=1.9, saved_by_perfect_overlap=1.8
            ),
            transfer_models=[
                TransferModel(
                    group=0,
                    latency=0.21,
                    algbw_gbps=1.234,
                    at_once=2,
                    calls=60,
                    smallest_bytes=4096,
                    largest_bytes=1048576,
                    error=0.05,
                )
            ],
        ),
        stragglers=Stragglers(
            basis="zones",
            steps_used=38,
            verdict="none",
            why="No rank's own time exceeds its peers' by more than the noise.",
            noise=3.1,
            ranks=[],
        ),
        data_loading=DataLoading(
            basis="zones",
            steps_used=38,
            verdict="keeps_up",
            per_rank=[
                RankLoading(rank=rank, wait=2.5, share_of_step=0.047, startup=120.0, num_workers=2, pin_memory=False)
                for rank in ranks
            ],
        ),
        sync_waits=None,
        operators=[
            Operator(
                name="aten::convolution_backward", calls=4.0, self=12.34, inclusive=15.5, spread=1.25, slowest_rank=3
            ),
            *(Operator(f"aten::op{index}", 2.5, 0.5, 0.75, spread=0.1, slowest_rank=0) for index in range(20)),
        ],
        memory=[Memory(rank=rank, device="host", zone=None, peak_bytes=345_292_800) for rank in ranks],
        findings=[],
        not_observed=[
            NotObserved(what="kernels", ranks=None, reason="not recorded"),
            NotObserved(what="totals", ranks=None, reason="not recorded"),
            NotObserved(what="clock.ranks.bound_us", ranks=[1, 2, 3], reason="no probes"),
        ],
        overhead=Overhead(
            zones_ms_per_step=0.03, window_ratio=1.12, export_s=0.41, trace_bytes=3_456_789, how="timed by the ranks"
        ),
        lateness=lateness(ranks),
        gantt=[gantt_step(9, ranks), gantt_step(20, ranks)] if ranks else [],
    )


def lateness(ranks: list[int], late: int | None = None, columns: int = 38) -> Lateness | None:
    """A picture in which `late` is 48.2 ms late in each step, and others are late by a few hundredths of a ms."""

    def row(rank: int) -> RankLateness:
        values = [48.2 if rank == late else ((rank + column) % 5) / 100 for column in range(columns)]
        return RankLateness(
            rank=rank, median=sorted(values)[columns // 2], largest=max(values), largest_step=7, late=values
        )

    if len(ranks) < 2:
        return None
    steps = [*range(1, columns + 1)]
    return Lateness(
        basis="zones",
        steps_used=columns,
        first_steps=steps,
        last_steps=steps,
        ranks=[row(rank) for rank in ranks],
    )


def gantt_step(step: int, ranks: list[int], late: int | None = None) -> GanttStep:
    """Data, forward, a wait and a transfer on each rank; `late` loads for longer and does not wait."""
    bars = []
    for rank in ranks:
        loaded = 50.7 if rank == late else 2.5
        bars += [
            GanttBar(rank, "thread", kind="data_loading", name="DataLoader#0", start=0.0, end=loaded),
            GanttBar(rank, "thread", kind="forward", name="Net", start=loaded, end=loaded + 41.2),
            GanttBar(rank, "thread", kind="transfer", name="", start=91.9, end=96.1),
            GanttBar(
                rank, "collectives", kind="transfer", name="all_reduce", start=91.9, end=96.1, bytes=1048576, bucket=0
            ),
        ]
        if rank != late:
            bars.append(GanttBar(rank, "thread", kind="wait", name="", start=loaded + 41.2, end=91.9))
    return GanttStep(
        step=step,
        why="typical" if late is None else "finding",
        about=[] if late is None else [late],
        duration=96.1,
        aligned=True,
        ranks=ranks,
        bars=bars,
        left_out=0,
    )


def many(world_size: int = 1024) -> Result:
    """A large job in which rank 2 is late: as large as its parts can get."""
    base = straggler()
    of_all = healthy(world_size)
    ranks = list(range(world_size))
    shown = [*range(8), *range(504, 512)]
    some = gantt_step(0, shown, late=2)
    full = replace(some, bars=[bar for bar in some.bars for _ in range(16)])
    return replace(
        of_all,
        stragglers=base.stragglers,
        findings=base.findings,
        breakdown=[replace(base.breakdown[2 if rank == 2 else 0], rank=rank) for rank in ranks],
        lateness=lateness(ranks, late=2, columns=128),
        gantt=[replace(full, step=step) for step in range(9, 15)],
    )


def straggler(zone: str = "DataLoader#0") -> Result:
    """Rank 2 loads its data slowly."""
    base = healthy()
    slow = replace(base.breakdown[2], step=101.3, data_wait=50.7, comm_wait=0.4)
    waiting = replace(base.breakdown[0], step=101.3, comm_wait=48.1)
    return replace(
        base,
        steps=replace(base.steps, steady=Spread(count=38, median=101.3, p10=99.0, p90=104.0)),
        breakdown=[replace(slow if rank == 2 else waiting, rank=rank) for rank in range(4)],
        stragglers=Stragglers(
            basis="zones",
            steps_used=38,
            verdict="straggler",
            why="Rank 2 was last at 36 of 38 synchronisations.",
            noise=3.1,
            ranks=[
                Straggler(
                    rank=2,
                    cause="data_loading",
                    zone=zone,
                    pattern="persistent",
                    steps=list(range(1, 39)),
                    group=0,
                    via=[],
                    delay=48.2,
                    imposed_wait=46.9,
                    last_arrivals=36,
                    of_collectives=38,
                    saved_if_fixed=45.0,
                    confidence="same_clock",
                )
            ],
        ),
        data_loading=replace(
            base.data_loading,
            verdict="stalls",
            per_rank=[
                replace(row, wait=50.7, share_of_step=0.5) if row.rank == 2 else row
                for row in base.data_loading.per_rank
            ],
        ),
        findings=[
            Finding(
                id="straggler",
                severity="critical",
                ranks=[2],
                steps=[1, 2, 3],
                observation=f"Rank 2 spends 50.7 ms per step in {zone}.",
                hypothesis="Its storage is slower.",
                next_check="Raise num_workers.",
                evidence={"delay_ms": 48.2},
            )
        ],
        lateness=lateness([0, 1, 2, 3], late=2),
        gantt=[gantt_step(9, [0, 1, 2, 3], late=2), gantt_step(20, [0, 1, 2, 3])],
    )


def undecided() -> Result:
    """The clocks do not allow a verdict."""
    base = healthy()
    return replace(
        base,
        clock=replace(base.clock, verdict="unaligned", reference_rank=None, method="none"),
        stragglers=replace(base.stragglers, verdict="undecided", why="the clocks are not aligned.", noise=None),
    )


def missing_rank() -> Result:
    """Rank 3 left nothing, rank 1 was cut off."""
    base = healthy()
    return replace(
        base,
        ranks=[
            base.ranks[0],
            replace(base.ranks[1], status="partial", reason="it was killed by signal 9"),
            base.ranks[2],
            replace(base.ranks[3], host=None, device=None, status="missing", reason="it left no files", trace=None),
        ],
        breakdown=base.breakdown[:3],
    )


def hostile() -> Result:
    """Every name that can come out of a trace tries to do harm."""
    base = straggler(zone=HOSTILE)
    return replace(
        base,
        run=replace(base.run, name=HOSTILE, command=[HOSTILE], backend=HOSTILE),
        conditions=Conditions(loader=[{HOSTILE: HOSTILE}]),
        ranks=[replace(row, host=HOSTILE, status="partial", reason=HOSTILE) for row in base.ranks],
        groups=[replace(base.groups[0], desc=HOSTILE)],
        clock=replace(base.clock, method=HOSTILE),
        steps=replace(base.steps, boundary=HOSTILE),
        communication=replace(
            base.communication,
            by_kind=[replace(base.communication.by_kind[0], kind=HOSTILE)],
            buckets=[replace(base.communication.buckets[0], model=model) for model in (HOSTILE, "other")],
        ),
        operators=[Operator(name=HOSTILE, calls=1.0, self=1.0, inclusive=1.0, spread=None)],
        kernels=[Kernel(name=HOSTILE, kind="kernel", collective=HOSTILE, calls=1.0, total=1.0, spread=None)],
        memory=[Memory(rank=0, device=HOSTILE, zone=HOSTILE, peak_bytes=1)],
        stragglers=replace(base.stragglers, why=HOSTILE),
        findings=[
            replace(
                base.findings[0],
                id=HOSTILE,
                observation=HOSTILE,
                hypothesis=HOSTILE,
                next_check=HOSTILE,
                evidence={HOSTILE: 1.0},
            )
        ],
        not_observed=[NotObserved(what=HOSTILE, ranks=None, reason=HOSTILE)],
        overhead=replace(base.overhead, how=HOSTILE),
        gantt=[
            replace(
                step, bars=[replace(bar, name=HOSTILE, kind=kind) for bar in step.bars for kind in (bar.kind, HOSTILE)]
            )
            for step in base.gantt
        ],
    )
