"""Blame among ranks of which some have no trace."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import pandas as pd

from commtrace.diagnosis import Finding
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["among_those_there"]

_BLAMING = ("straggler", "host-late", "device-late")
_LESS: dict[str, Literal["medium", "low"]] = {"high": "medium", "medium": "low", "low": "low"}


def among_those_there(finding: Finding, run: Measures) -> Finding:
    """The finding; one that blames a rank says how many were compared if some have no trace."""
    world = run.ranks["world_size"].max()
    if finding.rule not in _BLAMING or pd.isna(world):
        return finding
    if run.collectives["rank"].nunique() >= world:
        return finding
    matches = matched(run).matches
    its = matches[run.collectives["rank"].isin(finding.ranks).to_numpy()]
    lacking = its[(its["present"] > 1) & (its["present"] < its["expected"]).fillna(False)]
    if lacking.empty:
        return finding
    most = lacking.sort_values(["expected", "present"]).iloc[-1]
    compared = f"{most['present']} of {most['expected']} ranks were compared"
    return replace(
        finding,
        summary=f"{finding.summary}; only {compared}",
        confidence=_LESS[finding.confidence],
    )
