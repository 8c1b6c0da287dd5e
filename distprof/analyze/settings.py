"""Overridden settings: what was asked, what the script had, what took effect."""

from __future__ import annotations

from typing import Any

from distprof.analyze.inputs import Inputs
from distprof.analyze.offers import Judged
from distprof.result import Finding, SettingRow
from distprof.trace.tables import Tables

Key = tuple[Any, Any, Any, Any, Any, Any, Any]


def setting_rows(tables: Tables) -> list[SettingRow] | None:
    """A row for each setting and object, and for each setting that took effect nowhere; None: none was asked for.

    Ranks with the same row share it.
    """
    shared: dict[Key, list[int]] = {}
    asked_anywhere = False
    for rank, facts in sorted(tables.facts.items()):
        settings = facts.get("settings")
        if settings is None:
            continue
        asked_anywhere = True
        asked, unmet = settings["asked"], settings["unmet"]
        met = [row for row in settings["met"] if row["setting"] not in unmet]
        rows: list[Key] = [
            (name := row["setting"], asked.get(name), row["target"], row["place"], row["had"], row["took"], row["why"])
            for row in met
        ]
        rows += [(setting, asked.get(setting), None, None, None, None, why) for setting, why in unmet.items()]
        for row in rows:
            shared.setdefault(row, []).append(rank)
    if not asked_anywhere:
        return None
    return [SettingRow(*row, ranks) for row, ranks in shared.items()]


def of_settings(inputs: Inputs, judged: Judged) -> list[Finding]:
    """Settings that were asked for and took effect nowhere: what is compared by them is not what it seems."""
    del judged
    return [
        Finding(
            id="setting_without_effect",
            severity="critical",
            ranks=row.ranks,
            steps=[],
            observation=f"`--set {row.setting}` had no effect: {row.why}",
            hypothesis="the script makes what is to be set in another way, later, or in another process",
            next_check="see `conditions.loader` and `conditions.ddp` in report.json for what the script made; leave "
            "the setting away where there is nothing to be set",
            evidence={},
        )
        for row in setting_rows(inputs.tables) or ()
        if row.target is None
    ]
