"""The stages of a pipeline wait while it fills and drains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import pandas as pd

from commtrace.causal.culprits import culprits
from commtrace.diagnosis import CannotLook, Evidence, Finding, too_few
from commtrace.metrics.run.joined_rows import joined_messages
from commtrace.metrics.run.whole import of_time, share_pct, worth_reporting
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import counted

if TYPE_CHECKING:
    from commtrace.measures import Measures

_TIMES_MORE = 4
_MOST = 0.5  # of the steps


class PipelineBubble(Rule, frozen=True):
    """Stages of a pipeline wait for their neighbours a large part of the step.

    What it detects
        Ranks whose sends and recvs (at least ``min_operations``) form a chain, several
        messages going over each link of it in a step, or one that comes back as large, as a
        gradient does, where all but one send on only what they have received: a pipeline of p
        stages with m micro-batches. It fires where the stages' mean waiting in these sends and
        recvs is at least ``min_step_share`` of the steps' time.

    Why it costs time
        While the pipeline fills, later stages have nothing to do, while it drains the
        earlier: even with equal stages (p-1)/(m+p-1) of the time is idle.

    What to do
        More micro-batches per step, or a schedule that interleaves several parts of the model per
        stage. Where the waits are far longer than that, balance the stages. The potential saving is
        that of four times as many: a stage waits for p-1 micro-batches, each then a quarter as
        long. The latency of the added messages, taken from the shortest, is subtracted.

    Blind spots
        Interleaved schedules, whose bubble is smaller than the formula's. A stage that waits
        outside sends and recvs, as in a collective at the step's end. Ranks that exchange the
        edges of their domains with both neighbours at once are no pipeline.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication",)

    min_operations: int = 10
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per pipeline."""
        rows = _messages(run, self.min_operations)
        chains = _chains(rows)
        chain_of = {rank: number for number, chain in enumerate(chains) for rank in chain}
        each = dict(list(rows.groupby(rows["rank"].map(chain_of))))
        share = _handed_on(rows)
        handing_on = [
            (chain, mine)
            for at, chain in enumerate(chains)
            if _hand_on(chain, share, mine := each[at])
        ]
        if not handing_on:
            raise CannotLook("needs sends and recvs that form the chain of a pipeline")
        for chain, mine in handing_on:
            micro_batches = _messages_per_step(mine)
            waiting = float(mine.groupby("rank")["wait_ns"].sum().reindex(chain).mean())
            waiting = max(waiting - _for_culprits_ns(run, chain, self.min_step_share), 0.0)
            matters = (
                worth_reporting(waiting, run, self.min_step_share) and _gain_ns(mine, waiting) > 0
            )
            if (micro_batches > 1 or _come_back(mine)) and matters:
                yield self._finding(mine, len(chain), micro_batches, waiting, run)

    def _finding(
        self, rows: pd.DataFrame, stages: int, batches: int, waiting: float, run: Measures
    ) -> Finding:
        measured = share_pct(waiting, run)
        more = _TIMES_MORE * batches
        ideal, better = _bubble_pct(stages, batches), _bubble_pct(stages, more)
        uneven = measured > 1.25 * ideal
        leave = f"{counted(batches, 'micro-batch')} {'leaves' if batches == 1 else 'leave'}"
        advice = (
            f"with {more} micro-batches instead of {batches}, equal stages are idle only "
            f"{better:.0f} % of the time"
        )
        if uneven:
            advice += "; the rest is uneven stages or slow messages: balance the stages"
        return self.finding(
            rows,
            summary=(
                f"{stages} pipeline stages wait {measured:.0f} % of the time for their neighbours; "
                f"with equal stages, {leave} {ideal:.0f} % idle"
            ),
            ranks=tuple(sorted({int(rank) for rank in rows["rank"]})),
            cost_ns=_gain_ns(rows, waiting),
            evidence=(
                Evidence("mean waiting of a stage", waiting, "ns"),
                Evidence(f"share {of_time(run)}", measured, "%", 100 * self.min_step_share),
                Evidence("bubble of equal stages", ideal, "%"),
                Evidence("micro-batches", batches, "messages per link, direction and step"),
            ),
            ruled_out=() if uneven else ("uneven stages: the waits are what equal ones must cost",),
            advice=advice,
            confidence="medium" if uneven else "high",
        )

    @staticmethod
    def bad() -> Measures:
        """Two stages, two micro-batches a step: the second stage waits a third of the time."""
        return _run(steps=6, micro_batches=2)

    @staticmethod
    def good() -> Measures:
        """The same with forty micro-batches in one step."""
        return _run(steps=1, micro_batches=40)


def _run(steps: int, micro_batches: int) -> Measures:
    run = Tiny(ranks=2)
    length = (micro_batches + 1) * 1000
    for step in range(steps):
        start = step * length
        for rank in (0, 1):
            run.step(rank, step, start, length)
        for batch in range(micro_batches):
            ready = start + (batch + 1) * 1000
            posted = ready - 5 if batch else start + 5
            run.kernel(0, ready - 990, 980)
            run.collective(0, "send", ready - 5, 10, size=1 << 20, peer=1)
            run.collective(1, "recv", posted, ready + 5 - posted, size=1 << 20, peer=0)
            run.kernel(1, ready + 6, 980)
    return run.trace()


def _bubble_pct(stages: int, micro_batches: int) -> float:
    """What equal stages wait: (p-1)/(m+p-1), as GPipe's paper has it (arXiv:1811.06965)."""
    return 100 * (stages - 1) / (micro_batches + stages - 1)


def _gain_ns(rows: pd.DataFrame, waiting: float) -> int:
    """What so many more micro-batches gain, less what their messages take."""
    took = rows["end_ns"] - rows["arrival_ns"] - rows["wait_ns"]
    messages = len(rows) / rows["rank"].nunique()
    added = (_TIMES_MORE - 1) * messages * max(float(took.min()), 0.0)
    return max(round(waiting * (1 - 1 / _TIMES_MORE) - added), 0)


def _for_culprits_ns(run: Measures, chain: list[int], min_step_share: float) -> int:
    """What late stages among these cost: that is no bubble."""
    found = culprits(run, min_step_share).found
    return sum(max(one.on_top_ns, 0) for one in found if {*one.ranks} <= {*chain})


def _messages(run: Measures, min_operations: int) -> pd.DataFrame:
    """The rows of sends and recvs whose other side is there; CannotLook if these are too few.

    ``sender`` and ``receiver`` are the ranks of both sides.
    """
    rows = joined_messages(run).frame()
    rows = rows[rows["present"] == 2]
    rows = rows[rows["peer"].notna() & rows["skew_ns"].notna()]
    if (count := rows["operation"].nunique()) < min_operations:
        raise too_few(count, "send", min_operations, "matched with their recv")
    sends = rows["op"] == "send"
    peer = rows["peer"].astype("int64")
    return rows.assign(
        sender=rows["rank"].where(sends, peer), receiver=rows["rank"].where(~sends, peer)
    )


def _come_back(rows: pd.DataFrame) -> bool:
    """Whether what goes over a link comes back as large: an activation, and then its gradient."""
    sends = rows[rows["op"] == "send"]
    there, back = (
        sends.groupby(pair)["size_bytes"].median()
        for pair in (["sender", "receiver"], ["receiver", "sender"])
    )
    return there.equals(back)


def _messages_per_step(rows: pd.DataFrame) -> int:
    sends = rows[rows["op"] == "send"]
    per_step = sends.groupby(["step", "sender", "receiver"], dropna=False)["operation"].nunique()
    return int(per_step.median())


def _chains(rows: pd.DataFrame) -> list[list[int]]:
    """The groups of ranks whose links are a path: each neighbour at most two, without a ring."""
    pairs = rows[["sender", "receiver"]].drop_duplicates().to_numpy().tolist()
    links = {(min(pair), max(pair)) for pair in pairs}
    degree = Counter(rank for link in links for rank in link)
    home = {rank: {rank} for rank in degree}
    for a, b in links:
        together = home[a] | home[b]
        home.update(dict.fromkeys(together, together))
    groups = {tuple(sorted(group)) for group in home.values()}
    return [
        list(group)
        for group in sorted(groups)
        if max(degree[rank] for rank in group) <= 2
        and sum(link[0] in group for link in links) == len(group) - 1
    ]


def _handed_on(rows: pd.DataFrame) -> pd.Series[float]:
    """Of each rank the share of its steps in which it sends only what it received before."""
    is_send, keys = rows["op"] == "send", ["rank", "step"]
    sent = rows[is_send].groupby(keys)["arrival_ns"].min().rename("sent")
    received = rows[~is_send].groupby(keys)["end_ns"].min().rename("received")
    first = pd.concat([sent, received], axis=1)
    after = first["sent"].isna() | (first["sent"] >= first["received"])
    return after.astype("float64").groupby(level="rank").mean()


def _hand_on(chain: list[int], share: pd.Series[float], mine: pd.DataFrame) -> bool:
    """Whether all ranks but the first stage send in most steps only what they received before."""
    # A run without steps begins anywhere in its schedule: nothing tells there.
    if mine["step"].isna().all():
        return True
    of_chain = share.reindex(chain).dropna().sort_values()
    return bool((of_chain.to_numpy()[1:] >= _MOST).all())
