"""Devices' clocks against their hosts': kernels begin after their launch, and are over when a wait for them returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from distprof.clock.ends import Line
from distprof.clock.evidence import CONVERTED_NS, Evidence
from distprof.clock.fit import Fits
from distprof.clock.shift import Correction


def lines_by_devices(evidence: Evidence, devices: Fits) -> dict[int, Line]:
    """Lines for the hosts' clocks by way of their devices', if the quickest launch takes as long on all of them."""
    found: dict[int, Line] = {}
    if devices.of:
        of_host, spans = evidence.of_host(), evidence.spans
        hosts = {device: of_host[rank] for rank, device in evidence.of_device().items()}
        reference = devices.reference
        least, most = gap(evidence, reference, Correction(), Correction())
        ahead = nearest(least, most)
        launch = most - ahead if np.isfinite(most) else 0.0
        for device, fit in sorted(devices.of.items(), reverse=True):
            least, most = gap(evidence, device, Correction(), Correction())
            own = max(most - launch, least) if np.isfinite(most) else nearest(least, most)
            host = hosts[device]
            # What the device's clock read at the host's first and last record, since its own first one.
            read = (spans[host] - spans[device, 0]).astype(np.float64) + own
            rate = (fit.line.at_end - fit.line.at_start) / max(float(spans[device, 1] - spans[device, 0]), 1.0)
            then = (
                read - fit.line.at_start - rate * read + float(spans[reference, 0] - spans[hosts[reference], 0]) - ahead
            )
            start, end = (spans[host] - spans[host, 0]).astype(np.float64) - then
            found[host] = Line(float(start), float(end), fit.line.error + CONVERTED_NS)
    return found


def gap(evidence: Evidence, device: int, of_host: Correction, of_device: Correction) -> tuple[float, float]:
    """By how much a device's corrected times are at least, and at most, ahead of its host's; infinite if not known."""
    launches = evidence.launches.filter(pl.col("receiver") == device)
    waits = evidence.synchronisations.filter(pl.col("sender") == device)
    begun = of_device(launches["received"].to_numpy()) - of_host(launches["sent"].to_numpy())
    over = of_device(waits["sent"].to_numpy()) - of_host(waits["received"].to_numpy())
    return max(over.tolist(), default=-np.inf), min(begun.tolist(), default=np.inf)


def nearest(least: float, most: float) -> int:
    """What is nearest to no difference: a recorder converts a device's times to its host's clock as well as it can."""
    return round((least + most) / 2 if least > most else max(min(0.0, most), least))


def behind(evidence: Evidence, device: int) -> dict[str, Any]:
    """How far, in us, a device's clock is at least and at most behind its host's: fields of `DeviceClockRow`."""
    least, most = gap(evidence, device, Correction(), Correction())
    return {
        "behind_host_us": -most / 1e3 if np.isfinite(most) else None,
        "behind_host_most_us": -least / 1e3 if np.isfinite(least) and least <= most else None,
    }
