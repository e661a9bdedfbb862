"""Waits for one certain rank: an operation's root, or the other side of a send and its recv."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commtrace.causal.lateness import chance, own_gaps
from commtrace.diagnosis import enough, too_few
from commtrace.intervals import total, union
from commtrace.metrics.run.joined_rows import joined_rows
from commtrace.metrics.run.whole import worth_reporting

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = ["Awaited", "rooted", "sent", "systematic"]

_SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Awaited:
    """Waits for one rank in operations of one kind.

    ``key`` is communicator and root, or sender and receiver; ``waits`` has one row per wait
    that is the awaited rank's own doing, from ``start_ns`` to ``end_ns``.
    """

    key: tuple[object, int]
    operations: int
    p_value: float
    streams: tuple[int, ...]
    waits: pd.DataFrame

    @property
    def cost_ns(self) -> int:
        """Wall time of the waits."""
        return total(union(self.waits["start_ns"].to_numpy(), self.waits["end_ns"].to_numpy()))

    @property
    def median_ns(self) -> float:
        """The median wait."""
        return float((self.waits["end_ns"] - self.waits["start_ns"]).median())


def rooted(run: Measures, ops: Collection[str], min_operations: int) -> pd.DataFrame:
    """The rows of operations with a known root; CannotLook if there are too few of them."""
    rows = joined_rows(run)
    rows = rows[rows["op"].isin(ops) & (rows["present"] > 1) & rows["skew_ns"].notna()]
    rows = rows[rows["root"].notna()]
    if (count := rows["operation"].nunique()) < min_operations:
        which = f"({' or '.join(ops)}) matched and with a known root"
        raise too_few(count, "operation", min_operations, which)
    return rows


def sent(run: Measures, min_operations: int) -> pd.DataFrame:
    """The rows of sends and recvs whose other side is there; CannotLook if these are too few.

    ``sender`` and ``receiver`` are the ranks of both sides.
    """
    rows = joined_rows(run)
    rows = rows[rows["op"].isin(("send", "recv")) & (rows["present"] == 2)]
    rows = rows[rows["peer"].notna() & rows["skew_ns"].notna()]
    if (count := rows["operation"].nunique()) < min_operations:
        raise too_few(count, "send", min_operations, "matched with their recv")
    sends = rows["op"] == "send"
    peer = rows["peer"].astype("int64")
    return rows.assign(
        sender=rows["rank"].where(sends, peer), receiver=rows["rank"].where(~sends, peer)
    )


def systematic(
    rows: pd.DataFrame,
    late: pd.Series[bool],
    key: list[str],
    run: Measures,
    limits: tuple[int, float],
) -> Iterator[Awaited]:
    """Where the last to arrive is the one that ``late`` marks, more often than chance allows.

    ``limits`` are the operations needed of one key, and the share of the steps' time that
    the waits must cost. CannotLook if it is only so where there are too few operations.
    """
    gaps = own_gaps(rows)
    gaps = gaps[late.loc[gaps.index]]
    some = []
    keys = rows.groupby(key, observed=True, dropna=False)
    for _, mine in keys:
        first, second = mine[key].iloc[0]
        count = int(mine["operation"].nunique())
        its = gaps[gaps["operation"].isin(mine["operation"])]
        fair = float((1 / mine["present"]).mean())
        p_value = min(chance(len(its), count, fair) * keys.ngroups, 1.0)
        found = Awaited(
            key=(first, int(second)),
            operations=count,
            p_value=p_value,
            streams=tuple(sorted(int(stream) for stream in mine["stream"].unique())),
            waits=its[["operation", "start_ns", "end_ns"]],
        )
        few = count < limits[0] and len(its) > fair * count
        if (few or p_value <= _SIGNIFICANT) and worth_reporting(found.cost_ns, run, limits[1]):
            some.append((count, found))
    yield from enough(some, limits[0], "operation", f"with one {' and '.join(key)}")
