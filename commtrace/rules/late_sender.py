"""A receiver waits for its sender, in vain if that never sends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.intervals import total, union
from commtrace.metrics.run.joined_rows import joined_messages, paired
from commtrace.metrics.run.whole import whole
from commtrace.rules._culprit import delays
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import ms

if TYPE_CHECKING:
    import pandas as pd

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
        receive first, let one send first, or use ``batch_isend_irecv``.

    Blind spots
        A sender that is late because it waited elsewhere itself is not blamed: look at the
        one it waited for. In a pipeline some waiting is the schedule's, see pipeline-bubble.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication", "pipeline-bubble")

    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per sender; one of both sides where each waits for the other."""
        in_vain = _in_vain(run, self.min_step_share)
        for _, waits in in_vain.groupby("pair"):
            yield self._of_vain(waits)
        try:
            paired(run)
            yield from delays(self, run, self.min_step_share, "send", who="sending")
        except CannotLook:
            if in_vain.empty:
                raise

    def _of_vain(self, waits: pd.DataFrame) -> Finding:
        first, ranks = waits.iloc[0], tuple(sorted(waits["peer"].unique().tolist()))
        start, end = (waits[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
        longest = int((end - start).max())
        both = len(ranks) > 1
        who = (
            f"ranks {ranks[0]} and {ranks[1]} each wait" if both else f"rank {first['rank']} waits"
        )
        other = "the other" if both else f"rank {first['peer']}"
        return self.finding(
            (start, end),
            summary=f"{who} up to {ms(longest)} in a recv for what {other} does not send meanwhile",
            ranks=ranks,
            streams=tuple(sorted({int(stream) for stream in waits["stream"]})),
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
        return _run(send_at=4000, recv_at=1000)

    @staticmethod
    def good() -> Measures:
        """Twelve sends, each 3 ms before its recv."""
        return _run(send_at=1000, recv_at=4000)


def _run(send_at: float, recv_at: float) -> Measures:
    run = Tiny(ranks=2)
    for start in range(0, 120_000, 10_000):
        run.collective(0, "send", start + send_at, 6000 - send_at, size=1 << 26, peer=1)
        run.collective(1, "recv", start + recv_at, 6000 - recv_at, size=1 << 26, peer=0)
    return run.trace()


def _in_vain(run: Measures, min_step_share: float) -> pd.DataFrame:
    """Long recvs without a send from a rank that sent too few; its recording is around them."""
    rows = joined_messages(run).frame()
    if rows.empty:
        return rows
    rows = rows[rows["peer"].notna()]
    rows = rows.assign(peer=rows["peer"].astype("int64"), start_ns=rows["arrival_ns"])
    recvs, sends = rows[rows["op"] == "recv"], rows[rows["op"] == "send"]
    if recvs.empty:
        return recvs
    expected = recvs.groupby(["rank", "peer"])["op"].transform("size")
    count = sends.groupby(["peer", "rank"]).size().to_dict()
    came = [count.get(pair, 0) for pair in zip(recvs["rank"], recvs["peer"], strict=True)]
    cut = {note.rank for note in run.notes if note.code in ("truncated", "damaged")}
    windows = run.ranks.drop_duplicates("rank").set_index("rank")[["start_ns", "end_ns"]]
    window = windows.reindex(recvs["peer"]).astype("float64").to_numpy()
    waited = recvs["end_ns"] - recvs["start_ns"]
    return recvs[
        (recvs["present"] == 1)
        & (expected > came)
        & ~recvs["peer"].isin(cut)
        & (window[:, 0] <= recvs["start_ns"])
        & (recvs["end_ns"] <= window[:, 1])
        & (waited >= min_step_share * whole(run).time_ns)
    ]
