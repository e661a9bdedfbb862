"""A receiver waits for its sender, in vain if that never sends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.arrays import NULL, Int64, among, codes, distinct, grouped
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.intervals import total, union
from commtrace.metrics.run.joined_rows import joined_messages, paired
from commtrace.metrics.run.whole import whole
from commtrace.rules._culprit import delays
from commtrace.rules._examples import message
from commtrace.rules._rule import Rule
from commtrace.table import Rows
from commtrace.trace_tables import RECORDED_APART
from commtrace.units import ms

if TYPE_CHECKING:
    from commtrace.measures import Measures


class LateSender(Rule, frozen=True):
    """One rank's sends come later than the recvs that wait for them, or never.

    What it detects
        A rank that others wait for mostly in their recvs, and whose own work before its sends,
        made as long as is typical of the others, saves at least ``min_step_share`` of the steps'
        time when the run is replayed (see straggler). Also, even if only one: a recv that takes
        as long, while a sender that is recorded throughout sends fewer messages than the receiver
        expects.

    Why it costs time
        The receiver does nothing, and whoever needs what it makes of the message waits too.

    What to do
        Post the recv later or asynchronously, after work that does not need the message;
        let the sender send as soon as the data is there, before other work. Where both ranks
        receive first, let one send first, or use ``batch_isend_irecv``. A pipeline's stage that
        computes more than the others needs fewer layers: see straggler.

    Blind spots
        A sender that is late because it waited elsewhere itself is not blamed: look at the
        one it waited for. In a pipeline some waiting is the schedule's, see pipeline-bubble.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication", "pipeline-bubble")

    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per sender; one of both sides where each waits for the other."""
        in_vain = _in_vain(run, self.min_step_share)
        for waits in grouped(in_vain.ints("pair")):
            yield self._of_vain(in_vain.take(waits))
        try:
            paired(run)
            yield from delays(self, run, self.min_step_share, "send", who="sending")
        except CannotLook:
            if not len(in_vain):
                raise

    def _of_vain(self, waits: Rows) -> Finding:
        rank, ranks = waits.ints("rank")[0], tuple(distinct(waits.ints("peer")).tolist())
        start, end = waits.ints("arrival_ns"), waits.ints("end_ns")
        longest = int((end - start).max())
        both = len(ranks) > 1
        who = f"ranks {ranks[0]} and {ranks[1]} each wait" if both else f"rank {rank} waits"
        other = "the other" if both else f"rank {ranks[0]}"
        return self.finding(
            (start, end),
            summary=f"{who} up to {ms(longest)} in a recv for what {other} does not send meanwhile",
            ranks=ranks,
            streams=tuple(distinct(waits.ints("stream")).tolist()),
            cost_ns=total(union(start, end)),
            evidence=(
                Evidence("recvs without a send", len(waits), "operations", 0),
                Evidence("longest of them", longest, "ns"),
            ),
            ruled_out=(
                "a send outside of the recording: the recv is within what the sender recorded",
            ),
            advice=(
                "let one of them send first, or use batch_isend_irecv: this is a deadlock that "
                "only a timeout ends"
                if both
                else f"find out why rank {ranks[0]} does not send: a branch on rank or data, "
                "another order, or a wait of its own"
            ),
        )

    @staticmethod
    def bad() -> Measures:
        """Twelve recvs, each posted 3 ms before its send."""
        return message(send_at_us=4000, recv_at_us=1000)

    @staticmethod
    def good() -> Measures:
        """Twelve sends, each 3 ms before its recv."""
        return message(send_at_us=1000, recv_at_us=4000)


def _in_vain(run: Measures, min_step_share: float) -> Rows:
    """Long recvs without a send from a rank that sent too few; its recording is around them."""
    rows = joined_messages(run)
    # In a run that is cut to what all ranks recorded a send may have been before that.
    whole_run = all(note.code != RECORDED_APART for note in run.notes)
    rows = rows.take((rows.ints("peer") != NULL) & whole_run)
    rank, peer, receives = rows.ints("rank"), rows.ints("peer"), rows.coded("op").being("recv")
    way = codes(np.where(receives, rank, peer), np.where(receives, peer, rank))
    expected, came = (np.bincount(way[its], minlength=way.size) for its in (receives, ~receives))
    start, end = rows.ints("arrival_ns"), rows.ints("end_ns")
    first, last = _recorded(run, peer)
    cut = [note.rank for note in run.notes if note.code in ("truncated", "damaged")]
    return rows.take(
        receives
        & (rows.ints("present") == 1)
        & (expected > came)[way]
        & ~among(peer, [rank for rank in cut if rank is not None])
        & (first <= start)
        & (end <= last)
        & (end - start >= min_step_share * whole(run).time_ns)
    )


def _recorded(run: Measures, ranks: Int64) -> tuple[Int64, Int64]:
    """From when to when each of these ranks was recorded; of one that was not, never."""
    its = run.rows("ranks")
    known, first = np.unique(its.ints("rank"), return_index=True)
    at = np.searchsorted(known, ranks).clip(max=known.size - 1)
    there = known[at] == ranks
    start, end = (its.ints(name)[first[at]] for name in ("start_ns", "end_ns"))
    return start, np.where(there, end, NULL)
