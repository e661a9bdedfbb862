"""Ranks disagree on which operation comes next in a group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd

from commtrace.arrays import Bool, Int64, codes, first_rows
from commtrace.comms import POINT_TO_POINT
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.run.group_dimensions import spoken
from commtrace.metrics.run.waits import matched
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import cut, mb

if TYPE_CHECKING:
    from commtrace.measures import Measures

_PLACE = ["communicator", "seq", "nth"]
# Ranks put in and get out what they please: only what all must agree on can disagree.
_NEEDED = ["rank", "op", "dtype", "size_bytes", "seq", "stream", "start_ns", "duration_ns"]
_OWN_SIZES = ("all_to_all", "gather", "scatter")


class Desync(Rule, frozen=True):
    """Ranks disagree on which operation comes next in a group.

    What it detects
        A sequence number of a group under which its ranks called different operations, or the same
        with another type or size. The first such number is the fault; up to ``listed`` ranks that
        are in the minority are named.

    Why it costs time
        A collective is one only if all ranks call the same. Otherwise it hangs until the
        timeout, or it does not and adds up tensors that have nothing to do with each other:
        this is about the result before it is about time.

    What to do
        Look at what the named ranks do differently just before: a branch on the rank or on
        the data, another order of buckets or modules, a tensor of another shape.

    Blind spots
        Needs the group's sequence numbers (NCCL's Seq, or the flight recorder): positions in a
        trace are not enough, since one lost event would shift all after it. The order between
        groups, which can deadlock too, is not compared. Sizes of all_to_all, gather and scatter may
        differ legitimately.
    """

    explains: ClassVar[tuple[str, ...]] = ("cold-start",)

    listed: int = 8

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per group: its first divergence."""
        if len(run.ranks) < 2:
            raise CannotLook("needs several ranks")
        rows = _numbered(run)
        if rows.empty:
            raise CannotLook("needs sequence numbers: NCCL's Seq, or TORCH_FR_BUFFER_SIZE for gloo")
        place = codes(*(rows[name] for name in _PLACE))
        wrong = rows.iloc[first_rows(place)][_disagree(place, rows)]
        for communicator, of_group in wrong.groupby("communicator"):
            seq, nth = of_group.sort_values(["seq", "nth"])[["seq", "nth"]].iloc[0]
            here = rows[
                (rows["communicator"] == communicator) & (rows["seq"] == seq) & (rows["nth"] == nth)
            ]
            here = here.assign(said=_said(here))
            yield self._finding(here, int(seq), len(of_group), spoken(run, str(communicator)))

    def _finding(self, here: pd.DataFrame, seq: int, count: int, group: str) -> Finding:
        called = here.groupby("said")["rank"].apply(lambda ranks: tuple(sorted(ranks)))
        common = max(called, key=lambda ranks: (len(ranks), -min(ranks)))
        odd = sorted({*here["rank"]} - {*common})
        said = "; ".join(
            f"{_some(ranks, self.listed)} {'calls' if len(ranks) == 1 else 'call'} {what}"
            for what, ranks in sorted(called.items())
        )
        return self.finding(
            here,
            summary=cut(f"ranks disagree on operation {seq} of {group}: {said}", 200),
            ranks=tuple(odd),
            cost_ns=0,
            evidence=(
                Evidence("first number with different operations", seq, "sequence number"),
                Evidence("numbers with different operations", count, "operations", 0),
            ),
            ruled_out=("lost events: the group's own count numbers the operations",),
            advice=(
                f"find out what {_some(tuple(odd), self.listed)} did differently just before: a "
                "branch on rank or data, another order, another shape"
            ),
            confidence="high",
        )

    @staticmethod
    def bad() -> Measures:
        """Rank 1 calls broadcast and all_reduce in the other order."""
        return _run(("all_reduce", "broadcast"), ("broadcast", "all_reduce"))

    @staticmethod
    def good() -> Measures:
        """Both in the same order."""
        return _run(("all_reduce", "broadcast"), ("all_reduce", "broadcast"))


def _run(*orders: tuple[str, ...]) -> Measures:
    run = Tiny(ranks=len(orders))
    for rank, calls in enumerate(orders):
        for place, op in enumerate(("all_reduce", *calls, "all_reduce")):
            run.collective(rank, op, place * 100, 50, size=1 << 20)
    return run.trace()


def _some(ranks: tuple[int, ...], most: int) -> str:
    names = ", ".join(map(str, ranks[:most])) + (", …" if len(ranks) > most else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {names}"


def _numbered(run: Measures) -> pd.DataFrame:
    """Numbered collectives; ``nth`` distinguishes those that a rank coalesced under one number."""
    table, communicator = run.collective_columns, matched(run).matches["communicator"]
    known = communicator.notna().to_numpy() & (table["seq"].notna() & table["op"].notna())
    known &= ~table["op"].isin(POINT_TO_POINT)
    at = np.flatnonzero(known)
    rows = table[_NEEDED].iloc[at].set_axis(at)
    rows = rows.assign(
        communicator=communicator.iloc[at].astype(object).to_numpy(),
        **{name: rows[name].astype(object) for name in ("op", "dtype")},
        size=rows["size_bytes"].where(~rows["op"].isin(_OWN_SIZES)),
    )
    rows = rows.sort_values(["rank", "start_ns"], kind="stable")
    rows = rows.assign(nth=rows.groupby(["communicator", "seq", "rank"]).cumcount())
    alone = rows.groupby(_PLACE)["rank"].transform("nunique") < 2
    return rows[~alone]


def _disagree(place: Int64, rows: pd.DataFrame) -> Bool:
    """Of each place, whether more than one operation, type or size is known."""
    several = np.zeros(place.max(initial=-1) + 1, dtype=np.bool_)
    for name in ("op", "dtype", "size"):
        once = first_rows(codes(place, rows[name]))
        known = once[rows[name].notna().to_numpy()[once]]
        several |= np.bincount(place[known], minlength=several.size) > 1
    return several


def _said(rows: pd.DataFrame) -> pd.Series[str]:
    """What each calls, with its size."""
    size = rows["size_bytes"].astype("float64").map(mb, na_action="ignore")
    sizes = size.astype(object).where(size.notna(), "")
    dtype = rows["dtype"].astype(object).where(rows["dtype"].notna(), "")
    return (rows["op"].astype(str) + " " + dtype.astype(str) + " " + sizes).str.strip()
