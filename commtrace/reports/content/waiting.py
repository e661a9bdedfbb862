"""Who waits for whom, as the reports for people say it."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Any

from commtrace.measures import Measures, measure
from commtrace.metrics.run.arrivals import TRUST
from commtrace.metrics.run.group_dimensions import spoken
from commtrace.metrics.run.ranks import arrivals
from commtrace.metrics.run.run_clock import own_clocks
from commtrace.metrics.run.waits import matched
from commtrace.reports.content.tables import Section, more
from commtrace.units import clean, cut, duration, numbered

if TYPE_CHECKING:
    from commtrace.analysis import Analysis

__all__ = ["clocks", "matters", "section", "straggler", "untied_clocks"]

_SHOWN = 8
_SLIVER = 0.01  # of the run's span: less waiting is worth no table
_MOST = 0.5  # of the waiting: a straggler causes more
_OFTEN = 3  # times, and standard deviations above chance: a straggler is last as often
_LARGE_NS = 50_000  # a clock's error that can hide waiting
_EXPLAINED = frozenset(
    {"straggler", "jitter", "host-late", "device-late", "pipeline-bubble"}
    | {"early-root", "late-root", "late-sender", "late-receiver"}
)
_ADDED = (
    *("operations", "last_arrivals", "expected_last_arrivals"),
    *("wait_ns_total", "caused_wait_ns"),
)
_SUMS = (
    "Sums over operations, several at once included; the wait caused is over all ranks that waited."
)
_PARTIAL = ("Ranks are missing: some may have been later, and the waits longer.",)


def straggler(analysis: Analysis) -> str | None:
    """A sentence about the rank that the others wait for, if one stands out.

    It causes most of the waiting, and is last more often than chance explains: in all
    groups taken together, or else within one. None if a finding says why ranks waited, nor where
    a replay was asked for who delays the run: what some wait at once, or hidden, costs nothing.
    """
    diagnosis = analysis.verdict.diagnosis
    replayed = "straggler" in diagnosis.asked and "straggler" not in diagnosis.skipped
    reported = {finding.rule for finding in diagnosis.findings}
    if replayed or reported & _EXPLAINED or not matters(analysis):
        return None
    run = analysis.run
    partly = f" Only {len(run.ranks)} of {run.world_size} ranks were compared."
    partly = partly if run.missing_ranks else ""
    if worst := _outstanding(_by_rank(analysis.measures)):
        return f"Rank {_blamed(worst)}{partly}"
    of_group: dict[str | None, list[dict[str, Any]]] = {}
    for row in arrivals(analysis.measures).dicts():
        of_group.setdefault(row["communicator"], []).append(row)
    of_group.pop(None, None)
    found = [worst for group in of_group.values() if (worst := _outstanding(group))]
    if not found:
        return None
    worst = max(found, key=lambda row: int(row["caused_wait_ns"]))
    group = spoken(analysis.measures, str(worst["communicator"]))
    return f"Among {cut(clean(group), 60)}, rank {_blamed(worst)}{partly}"


def matters(analysis: Analysis) -> bool:
    """Whether a rank waited, or caused a wait, for more than a sliver of the run."""
    least = _SLIVER * analysis.run.span_ns
    ranks = _by_rank(analysis.measures)
    return any(max(row["wait_ns_total"], row["caused_wait_ns"]) > least for row in ranks)


def section(analysis: Analysis) -> Section:
    """How often each rank was last, how long it waited, and the wait that it caused."""
    table = _by_rank(analysis.measures)
    if len(table) > _SHOWN:
        table = sorted(table, key=lambda row: -row["caused_wait_ns"])
    return Section(
        "Who waits for whom",
        (
            ("rank", ">"),
            ("arrived last", ">"),
            ("waited", ">"),
            ("wait\ncaused", ">"),
        ),
        [
            [
                str(row["rank"]),
                _last(row),
                duration(row["wait_ns_total"]),
                duration(row["caused_wait_ns"]),
            ]
            for row in table[:_SHOWN]
        ],
        (
            *more(len(table), _SHOWN),
            _SUMS,
            *(_PARTIAL if analysis.run.missing_ranks else ()),
        ),
    )


def clocks(analysis: Analysis) -> list[str]:
    """How well the ranks' clocks are known, where that hides waiting or hosts differ."""
    if line := untied_clocks(analysis.measures):
        return [line]
    error_ns = int(matched(analysis.measures).clock.ints("error_ns").max(initial=0))
    if len(analysis.run.hosts) < 2 and error_ns < _LARGE_NS:
        return []
    known, hidden = duration(error_ns), duration(TRUST * error_ns)
    return [f"Clocks are known to within {known}: no wait below {hidden} is known."]


def untied_clocks(run: Measures) -> str | None:
    """Whose clocks could not be compared; None where all are."""
    if not (ranks := own_clocks(run)):
        return None
    whose = numbered("rank", ranks)
    return f"Nothing ties {whose} to the others' clock: waits across clocks are unknown."


@measure
def _by_rank(run: Measures) -> list[dict[str, Any]]:
    """The rows of ARRIVALS of each rank added, what is unknown as none."""
    total: dict[int, dict[str, Any]] = {}
    for row in arrivals(run).dicts():
        its = total.setdefault(row["rank"], {"rank": row["rank"], **dict.fromkeys(_ADDED, 0)})
        its |= {name: its[name] + (row[name] or 0) for name in _ADDED}
    return [total[rank] for rank in sorted(total)]


def _outstanding(ranks: list[dict[str, Any]]) -> dict[str, Any] | None:
    worst = max(ranks, key=lambda row: int(row["caused_wait_ns"]))
    last, chance = worst["last_arrivals"], worst["expected_last_arrivals"]
    deviation = sqrt(chance * (1 - chance / worst["operations"]))
    often = last >= max(_OFTEN, chance + _OFTEN * deviation)
    most = worst["caused_wait_ns"] > _MOST * sum(row["caused_wait_ns"] for row in ranks)
    return worst if often and most else None


def _blamed(row: dict[str, Any]) -> str:
    return (
        f"{row['rank']} arrived last in {_last(row)} operations; "
        f"the others waited {duration(row['caused_wait_ns'])} for it."
    )


def _last(row: dict[str, Any]) -> str:
    return f"{row['last_arrivals']:,} of {row['operations']:,}"
