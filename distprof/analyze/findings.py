"""Findings: what to do about it, each with the figures it stands on, ordered by what fixing it would save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from distprof.analyze.bucket_sizes import of_buckets
from distprof.analyze.device_habits import DEVICE_HABITS
from distprof.analyze.habits import HABITS
from distprof.analyze.host_bound import host_bound
from distprof.analyze.inputs import Inputs
from distprof.analyze.loading_findings import of_loading
from distprof.analyze.offers import VIEW_RUN, VIEW_TRACES, Judged
from distprof.analyze.settings import of_settings
from distprof.analyze.straggler_findings import of_stragglers
from distprof.result import Finding

Offer = Callable[[Inputs, Judged], list[Finding]]

MOST_FINDINGS = 7
OFFERS: tuple[Offer, ...] = (of_stragglers, of_loading, of_buckets, *HABITS, *DEVICE_HABITS, host_bound)


def findings(inputs: Inputs, judged: Judged) -> list[Finding]:
    """What is most worth doing: of all that the analyses offer, that which saves the most; but first what makes the
    run another one than was asked for."""
    offered = [finding for offer in OFFERS for finding in offer(inputs, judged)]
    worth = sorted(offered, key=lambda finding: -(finding.saves or 0.0))
    said = [*of_settings(inputs, judged), *worth][:MOST_FINDINGS]
    return [_about_traces(finding) for finding in said] if inputs.annotated else said


def _about_traces(finding: Finding) -> Finding:
    """With the next check that works where there is no run directory."""
    return replace(finding, next_check=finding.next_check.replace(VIEW_RUN, VIEW_TRACES))
