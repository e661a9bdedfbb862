"""Who is late to the operations that everybody waits in, how surely, and what it did instead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, lgamma, log
from typing import TYPE_CHECKING, Any

import pandas as pd

from commtrace.causal.delays import delay_ns
from commtrace.causal.doing import Doing, doing_of
from commtrace.comms import SYNCHRONISING
from commtrace.diagnosis import CannotLook, too_few
from commtrace.measures import measure
from commtrace.metrics.rank.segments import segments
from commtrace.metrics.run.joined_rows import joined_rows
from commtrace.metrics.run.whole import worth_reporting

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Late", "arrivals", "chance", "late_ranks", "own_gaps", "stragglers_doing"]

_SIGNIFICANT = 0.05
_OUTLIER = 3


def chance(at_least: int, of: int, probability: float) -> float:
    """The chance of that many successes or more: the upper tail of the binomial.

    >>> round(chance(8, 12, 0.25), 4)
    0.0028
    """
    if at_least <= 0:
        return 1.0
    if at_least > of:
        return 0.0
    if probability >= 1:
        return 1.0
    log_term = lgamma(of + 1) - lgamma(at_least + 1) - lgamma(of - at_least + 1)
    log_term += at_least * log(probability) + (of - at_least) * log(1 - probability)
    term = exp(log_term)
    tail = term
    for done in range(at_least, of):
        term *= (of - done) / (done + 1) * probability / (1 - probability)
        tail += term
        if term < 1e-12 * tail and done > of * probability:
            break
    return min(tail, 1.0)


@dataclass(frozen=True)
class Late:
    """A rank that is last more often than chance allows.

    ``gaps`` has one row per operation that it was last in: ``start_ns``, the second-latest
    arrival, ``end_ns``, its own, ``gap_ns`` between them, and the ``communicator``.
    ``communicator`` is None for the whole run. ``cost_ns`` is the wall time in which only it
    was awaited, counted once however many waited, less that in which the second-latest rank
    computed on: that delays nobody.
    """

    rank: int
    communicator: str | None
    operations: int
    expected_last: float
    p_value: float
    steps: int
    steps_led: int
    cpu: bool
    streams: tuple[int, ...]
    gaps: pd.DataFrame
    cost_ns: int
    doing: Doing | None

    @property
    def last(self) -> int:
        """How often it was last."""
        return len(self.gaps)

    @property
    def median_ns(self) -> float:
        """The median gap."""
        return float(self.gaps["gap_ns"].median())

    @property
    def each_ns(self) -> float:
        """What one operation that it was last in costs."""
        return self.cost_ns / self.last


def arrivals(run: Measures, min_operations: int) -> pd.DataFrame:
    """The rows of the operations that everybody waits in; CannotLook if these are too few."""
    rows = joined_rows(run)
    rows = rows[rows["op"].isin(SYNCHRONISING) & (rows["present"] > 1) & rows["skew_ns"].notna()]
    if (count := rows["operation"].nunique()) < min_operations:
        which = "with comparable arrivals"
        raise too_few(count, "matched collective", min_operations, which)
    return rows


@measure
def late_ranks(run: Measures, min_operations: int) -> tuple[Late, ...]:
    """Ranks that are last too often: in the run, else in one communicator.

    A binomial test of being last in the operations against one in as many as there are
    ranks, corrected for the number of ranks and communicators. Lateness that a rank itself
    inherited by waiting elsewhere is not its own, and not counted.
    """
    rows = arrivals(run, min_operations)
    most = int(rows.groupby("rank")["operation"].nunique().max())
    if most < min_operations:
        raise too_few(most, "matched collective", min_operations, "of one rank")
    return tuple(_late(rows, own_gaps(rows), run, min_operations))


def stragglers_doing(
    run: Measures, min_operations: int, min_step_share: float
) -> list[tuple[Late, Doing]]:
    """The late ranks that cost that share of the steps, and what they did; else CannotLook."""
    costly = [
        late
        for late in late_ranks(run, min_operations)
        if worth_reporting(late.cost_ns, run, min_step_share)
    ]
    explained = [(late, late.doing) for late in costly if late.doing is not None]
    if len(explained) < len(costly):
        raise CannotLook("needs what the late rank's device did: the trace lacks it")
    return explained


def own_gaps(rows: pd.DataFrame) -> pd.DataFrame:
    """The last rows of the operations whose last rank is known and late by its own doing.

    ``start_ns`` is the second-latest arrival, ``end_ns`` its own, ``gap_ns`` between them;
    ``second_rank``, ``second_device`` and ``second_start_ns``, on its own clock, of the former.
    The first operation of a communicator, or of the two ranks of a message, is left out if
    it is far later than the others: who is behind somebody else has to begin later.
    """
    ordered = rows.sort_values(["operation", "arrival_ns"], kind="stable")
    second = ordered[ordered["operation"].duplicated(keep="last")]
    second = second.drop_duplicates("operation", keep="last").set_index("operation")
    last = rows[rows["last"]].copy()
    last["end_ns"] = last["arrival_ns"]
    last["start_ns"] = last["operation"].map(second["arrival_ns"])
    last["second_rank"] = last["operation"].map(second["rank"])
    last["second_device"] = last["operation"].map(second["device"].astype(object))
    last["second_start_ns"] = last["operation"].map(second["start_ns"])
    last["gap_ns"] = last["end_ns"] - last["start_ns"]
    between = ["communicator", "pair"]
    first = rows.sort_values("arrival_ns").drop_duplicates(between)["operation"]
    usual = last.groupby(between, observed=True, dropna=False)["gap_ns"].transform("median")
    started = last["operation"].isin(first) & (last["gap_ns"] > _OUTLIER * usual)
    own = last["gap_ns"] - last["inherited_ns"] >= last["gap_ns"] / 2
    return last[own & ~started]


def _late(
    rows: pd.DataFrame, gaps: pd.DataFrame, run: Measures, min_operations: int
) -> Iterator[Late]:
    communicators = rows["communicator"].dropna().unique()
    places: list[str | None] = [None, *communicators] if len(communicators) > 1 else [None]
    tests = rows["rank"].nunique() * len(places)
    before = segments(run, rows)
    for rank in rows["rank"].unique().tolist():
        mine = rows[rows["rank"] == rank]
        for place in places:
            here = mine if place is None else mine[mine["communicator"] == place]
            if len(here) < min_operations:
                continue
            there = rows if place is None else rows[rows["communicator"] == place]
            late = _tested(rank, place, there, gaps, tests, before, run)
            if late is not None:
                yield late
                if place is None:
                    break


def _tested(
    rank: int,
    place: str | None,
    rows: pd.DataFrame,
    gaps: pd.DataFrame,
    tests: int,
    before: pd.DataFrame,
    run: Measures,
) -> Late | None:
    mine = rows[rows["rank"] == rank]
    there = gaps[gaps["operation"].isin(mine["operation"])]
    last = there[there["rank"] == rank]
    fair = float((1 / mine["present"]).mean())
    p_value = min(chance(len(last), len(mine), fair) * tests, 1.0)
    led = _leaders(there)
    steps, steps_led = len(led), int((led == rank).sum())
    mostly = 2 * steps_led > steps or chance(steps_led, steps, fair) <= 0.05
    if p_value > _SIGNIFICANT or not mostly:
        return None
    others = rows[(rows["rank"] != rank) & rows["operation"].isin(mine["operation"])]
    return Late(
        rank=rank,
        communicator=place,
        operations=len(mine),
        expected_last=fair * len(mine),
        p_value=p_value,
        steps=steps,
        steps_led=steps_led,
        cpu=bool((mine["device"] == "cpu").all()),
        streams=tuple(sorted(int(one) for one in last["stream"].unique())),
        gaps=last[["operation", "communicator", "start_ns", "end_ns", "gap_ns"]],
        cost_ns=delay_ns(others, last.set_index("operation")["gap_ns"], run),
        doing=doing_of(before, rank, last["operation"]),
    )


def _leaders(gaps: pd.DataFrame) -> Any:
    """The rank that each step waited for longest."""
    by_rank = gaps.groupby(["step", "rank"], dropna=False)["gap_ns"].sum().reset_index()
    return by_rank.sort_values("gap_ns").drop_duplicates("step", keep="last")["rank"].to_numpy()
