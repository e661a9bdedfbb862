"""Ranks disagree on which operation comes next in a group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, first_rows, nth, rows_by
from commtrace.comms import POINT_TO_POINT
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.run.group_dimensions import spoken
from commtrace.metrics.run.waits import matched
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.table import Column, Rows, Table
from commtrace.trace_tables import COLLECTIVES
from commtrace.units import cut, mb

if TYPE_CHECKING:
    from commtrace.measures import Measures

_PLACE = ("communicator", "seq", "nth")
_NEEDED = ("rank", "op", "dtype", "size_bytes", "seq", "stream", "start_ns", "duration_ns")
# Ranks put in and get out what they please: only what all must agree on can disagree.
_OWN_SIZES = ("all_to_all", "gather", "scatter")
_NUMBERED = Table(
    "numbered",
    "one row of `collectives` whose place in its group others know, too",
    (
        *COLLECTIVES.only(_NEEDED),
        Column("communicator", "category", "The process group's identity across ranks."),
        Column("nth", "int64", "How many the rank called before it under the same number."),
    ),
)


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
        if len(run.rows("ranks")) < 2:
            raise CannotLook("needs several ranks")
        rows = _numbered(run)
        if not len(rows):
            raise CannotLook("needs sequence numbers: NCCL's Seq, or TORCH_FR_BUFFER_SIZE for gloo")
        place = codes(*(rows.columns[name] for name in _PLACE))
        wrong = first_rows(place)[_disagree(place, rows)]
        wrong = wrong[np.lexsort((rows.ints("nth")[wrong], rows.ints("seq")[wrong]))]
        groups = rows_by(rows.coded("communicator").take(wrong))
        for (group,), its in sorted(groups.items()):
            here = rows.take(place == place[wrong[its[0]]])
            yield self._finding(here, its.size, spoken(run, group))

    def _finding(self, here: Rows, count: int, group: str) -> Finding:
        seq = int(here.ints("seq")[0])
        called = _called(here)
        common = max(called.values(), key=lambda ranks: (len(ranks), -min(ranks)))
        odd = sorted({*here.ints("rank").tolist()} - {*common})
        said = "; ".join(
            f"{_some(ranks, self.listed)} {'calls' if len(ranks) == 1 else 'call'} {what}"
            for what, ranks in called.items()
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


def _numbered(run: Measures) -> Rows:
    """Numbered collectives; a rank may have coalesced several under one number."""
    called, communicator = run.rows("collectives"), matched(run).matches.coded("communicator")
    rank, seq = called.ints("rank"), called.ints("seq")
    collective = called.coded("op").where(lambda op: op not in POINT_TO_POINT)
    at = np.flatnonzero(communicator.known & (seq != NULL) & collective)
    at = at[np.lexsort((called.ints("start_ns")[at], rank[at]))]
    communicator = communicator.take(at)
    again = nth(codes(communicator, seq[at], rank[at]))
    place = codes(communicator, seq[at], again)
    shared = np.bincount(place)[place] > 1  # each rank is there once
    its = run.rows("collectives", at[shared]).columns
    return _NUMBERED.rows(
        {
            **{name: its[name] for name in _NEEDED},
            "communicator": communicator.take(shared),
            "nth": again[shared],
        }
    )


def _disagree(place: Int64, rows: Rows) -> Bool:
    """Of each place, whether more than one operation, type or size is known."""
    op, dtype = rows.coded("op"), rows.coded("dtype")
    own = op.where(_OWN_SIZES.__contains__)
    size = np.where(own, NULL, rows.ints("size_bytes"))
    several = np.zeros(place.max(initial=-1) + 1, dtype=np.bool_)
    for said, known in ((op, op.known), (dtype, dtype.known), (size, size != NULL)):
        once = first_rows(codes(place, said))
        several |= np.bincount(place[once[known[once]]], minlength=several.size) > 1
    return several


def _called(rows: Rows) -> dict[str, tuple[int, ...]]:
    """The ranks that called each operation, type and size, in the order of their names."""
    said = zip(
        rows.coded("op").decoded(),
        rows.coded("dtype").decoded(),
        rows.ints("size_bytes").tolist(),
        rows.ints("rank").tolist(),
        strict=True,
    )
    ranks = defaultdict[str, list[int]](list)
    for op, dtype, size_bytes, rank in said:
        size = "" if size_bytes == NULL else mb(size_bytes)
        ranks[f"{op} {dtype or ''} {size}".strip()].append(rank)
    return {what: tuple(sorted(its)) for what, its in sorted(ranks.items())}
