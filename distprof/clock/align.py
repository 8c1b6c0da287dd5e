"""Putting the ranks' times on one clock, with what that may be wrong by.

Two things are said of each clock and never mixed: `bound_us` follows from causality alone (see `solve`), `error_us`
from the assumption that symmetric collectives end together (see `ends`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import polars as pl

from distprof.clock.devices import behind, gap, lines_by_devices, nearest
from distprof.clock.ends import Line, corrected
from distprof.clock.evidence import Evidence, gather
from distprof.clock.fit import Fit, Fits, fit_clocks
from distprof.clock.shift import Correction
from distprof.result import Clock, ClockRow, DeviceClockRow, NotObserved
from distprof.trace.tables import Tables

_TYPICAL = 0.9  # of the collectives have ends no farther apart than is said


def align(tables: Tables, *, recorded: bool = True) -> tuple[Clock, list[NotObserved]]:
    """Find each rank's clock against that of the first rank, and each device's.

    Args:
        recorded: whether the ranks told their host and boot themselves; else hosts are known by name.

    Returns:
        The clocks, and what could not be observed of them. If some rank's arrivals at collectives cannot be compared
        with the others' the verdict is `unaligned`.
    """
    if not tables.ranks:
        return Clock(method="no rank left a recording", verdict="unaligned", reference_rank=None, ranks=[]), []
    evidence = gather(tables)
    of_host, of_device = evidence.of_host(), evidence.of_device()
    shared = len(set(of_host.values())) == 1
    devices = fit_clocks(evidence, of_device)
    hosts = fit_clocks(evidence, of_host, shared=shared, guesses=lines_by_devices(evidence, devices))
    by_device = tables.arrival == "started" and len(of_device) == len(tables.ranks)
    judged, clocks = (devices, of_device) if by_device else (hosts, of_host)
    verdict: Literal["aligned", "same_host", "unaligned"] = "unaligned"
    if all(clock in judged.of for clock in clocks.values()) and not (shared and not by_device):
        verdict = "aligned"
    elif shared:
        verdict, judged, clocks = "same_host", hosts, of_host
    ends, apart = _ends_apart(evidence, judged)
    clock = Clock(
        method=_method(evidence, verdict, judged, by_device=by_device, recorded=recorded),
        verdict=verdict,
        reference_rank=evidence.dials[judged.reference].ranks[0] if len(judged.of) > 1 or shared else None,
        **_rows(evidence, hosts, devices, shared=shared),
        ends=ends,
        ends_apart_us=apart,
    )
    return clock, [*_missing(evidence, clock, judged, shared=shared), *_probes_off(tables)]


def _rows(evidence: Evidence, hosts: Fits, devices: Fits, *, shared: bool) -> dict[str, Any]:
    """The rows of the clocks of ranks and devices, and the moment at which their offsets hold."""
    origin = int(evidence.spans[hosts.reference, 0])
    of_host, of_device = evidence.of_host(), evidence.of_device()
    # A clock that could be compared with no other is aligned with nothing.
    some = len(hosts.of) > 1 or shared
    placed = {
        clock: _placed(evidence, clock, hosts.reference, fit.line, origin)
        for clock, fit in (hosts.of.items() if some else ())
    }
    on_device = {
        clock: _placed(evidence, clock, devices.reference, fit.line, origin) for clock, fit in devices.of.items()
    }
    gaps = [
        gap(evidence, device, placed[of_host[rank]], on_device[device])
        for rank, device in of_device.items()
        if of_host[rank] in placed and device in on_device
    ]
    if gaps:
        ahead = nearest(max(least for least, _ in gaps), min(most for _, most in gaps))
        on_device = {clock: replace(by, offset_ns=by.offset_ns + ahead) for clock, by in on_device.items()}
    of_ranks = [
        ClockRow(
            rank=rank,
            **_figures(placed.get(clock), None if shared else hosts.of.get(clock)),
            same_as=evidence.dials[clock].ranks[0],
        )
        for rank, clock in sorted(of_host.items())
    ]
    of_devices = [
        DeviceClockRow(
            rank=rank,
            **_figures(on_device.get(clock), devices.of.get(clock)),
            same_as=rank,
            **behind(evidence, clock),
        )
        for rank, clock in sorted(of_device.items())
    ]
    return {"origin_unix_ns": origin, "ranks": of_ranks, "devices": of_devices}


def _placed(evidence: Evidence, clock: int, reference: int, line: Line, origin: int) -> Correction:
    """A clock's line as a correction whose offset holds when the reference reads `origin`."""
    first, last = map(int, evidence.spans[clock])
    start = int(evidence.spans[reference, 0])
    drift = (line.at_end - line.at_start) / max(last - first, 1)
    then = (origin - start + line.at_start) / (1 - drift)  # on the clock, since its first record
    return Correction(first - origin + round(then), drift, origin)


def _figures(by: Correction | None, fit: Fit | None) -> dict[str, Any]:
    if by is None:
        return dict.fromkeys(("offset_us", "drift_ppm", "bound_us", "error_us"))
    return {
        "offset_us": by.offset_ns / 1e3,
        "drift_ppm": by.drift * 1e6,
        "bound_us": None if fit is None or fit.bound is None else fit.bound / 1e3,
        "error_us": None if fit is None or fit.error is None else fit.error / 1e3,
    }


def _ends_apart(evidence: Evidence, fits: Fits) -> tuple[int, float | None]:
    """Symmetric collectives that ended on several ranks of aligned clocks; how far apart, in us, most of them do."""
    apart = (
        corrected(evidence, {clock: fit.line for clock, fit in fits.of.items()})
        .group_by("meeting")
        .agg(pl.col("rank").n_unique().alias("ranks"), apart=pl.col("moment").max() - pl.col("moment").min())
        .filter(pl.col("ranks") > 1)["apart"]
    )
    return len(apart), float(np.quantile(apart.to_numpy(), _TYPICAL)) / 1e3 if len(apart) else None


def _method(evidence: Evidence, verdict: str, fits: Fits, *, by_device: bool, recorded: bool) -> str:
    """How the clocks were aligned, or why they were not, in words."""
    if verdict == "same_host":
        if recorded:
            return "all ranks ran in one boot of one host and read the same clock; nothing was subtracted"
        return "all traces name one host, and their times count from 1970: taken for one clock; nothing was subtracted"
    if verdict == "aligned":
        what = "device's clock" if by_device else "host's clock"
        reference = evidence.dials[fits.reference].ranks[0]
        collectives = evidence.ends["meeting"].n_unique()
        counted = ((collectives, "collective"), (evidence.probes, "probe"))
        of = " and ".join(f"{count} {noun}{'s' if count != 1 else ''}" for count, noun in counted if count)
        of = of or "launches and synchronisations"
        return f"offset and drift of each {what} against that of rank {reference}, by what came before what in {of}"
    if fits.steps:
        clocks = ", ".join(_names(evidence.dials[clock].ranks) for clock in sorted(fits.steps))
        return f"no single offset and drift fits the clock of {clocks}"
    return (
        "the ranks ran on several hosts, or it is not known on which, and too little was recorded to align their clocks"
    )


def _missing(evidence: Evidence, clock: Clock, fits: Fits, *, shared: bool) -> list[NotObserved]:
    """What is not known of the clocks, and why."""
    missing = []
    reference = evidence.dials[fits.reference].ranks
    for place, step in sorted(fits.steps.items()):
        dial = evidence.dials[place]
        whose = "its clock" if len(evidence.dials) > 2 else f"its clock, or that of {_names(reference)},"
        by = "" if step.by is None else f", by about {step.by / 1e6:+.3f} ms"
        text = (
            f"{whose} was set, or changed its rate, between {step.first / 1e9:.3f} and {step.last / 1e9:.3f} s after "
            f"its first record{by}: no offset holds for all of the run"
        )
        missing.append(NotObserved("clock.ranks.offset_us", list(dial.ranks), text))
    if evidence.differ:
        text = "they name one host and boot, and what they recorded contradicts one clock: each was aligned by itself"
        missing.append(NotObserved("clock.ranks.same_as", evidence.differ, text))
    if shared:
        reason = "the ranks share one clock; no bound was measured"
        missing += [NotObserved(f"clock.ranks.{figure}", None, reason) for figure in ("bound_us", "error_us")]
    reasons = {
        "offset_us": "no collective or probe compares its clock with the others' from both sides",
        "bound_us": "no collective that binds its members and no probe compares it with the others' from both sides",
        "error_us": "fewer than two symmetric collectives are known to have ended on it and on others",
    }
    if clock.ends_apart_us is None:
        reason = "the ends of no symmetric collective are known on several ranks whose clocks are aligned"
        missing.append(NotObserved("clock.ends_apart_us", None, reason))
    stepped = {rank for place in fits.steps for rank in evidence.dials[place].ranks}
    for table, rows in (("ranks", [] if shared else clock.ranks), ("devices", clock.devices)):
        for figure, reason in reasons.items():
            ranks = [row.rank for row in rows if getattr(row, figure) is None and row.rank not in stepped]
            if ranks:
                missing.append(
                    NotObserved(f"clock.{table}.{figure}", None if len(ranks) == len(rows) else ranks, reason)
                )
    bounds = {
        "behind_host_us": "no kernel's launch was recorded, or the rank used several devices",
        "behind_host_most_us": "no synchronisation with the whole device was recorded that agrees with its launches",
    }
    for figure, reason in bounds.items():
        ranks = [row.rank for row in clock.devices if getattr(row, figure) is None]
        if ranks:
            missing.append(NotObserved(f"clock.devices.{figure}", ranks, reason))
    return missing


def _probes_off(tables: Tables) -> list[NotObserved]:
    """Ranks whose clock probes were off, by the reason that they gave."""
    reasons: dict[str, list[int]] = {}
    for rank, facts in sorted(tables.facts.items()) if tables.world_size > 1 else ():
        probes = facts.get("probes")
        if isinstance(probes, dict) and probes.get("status") == "off" and probes.get("reason"):
            reasons.setdefault(str(probes["reason"]), []).append(rank)
    return [NotObserved("clock.probes", ranks, reason) for reason, ranks in reasons.items()]


def _names(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
