"""Two operations do the work of an all_reduce, and take longer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from commtrace.arrays import NULL, distinct
from commtrace.causal.chance import at_least
from commtrace.causal.edits.run_edits import joined
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import Edit, Saving, saving
from commtrace.diagnosis import CannotLook, Evidence, Finding
from commtrace.metrics.run.decompositions import Pair, Reference, pairs, reference
from commtrace.metrics.run.sums_by_hand import sums_by_hand
from commtrace.metrics.run.whole import worth_reporting
from commtrace.quantiles import median, quantile
from commtrace.rules._by_hand import (
    advice,
    and_flat,
    as_all_reduces,
    flattened,
    summary,
    taken_ns,
    transfer_ns,
)
from commtrace.rules._excess import counts, factors, in_words, ruled_out, source, spread
from commtrace.rules._rule import Rule
from commtrace.synthetic import Tiny
from commtrace.units import counted, mb, ms, multiple

if TYPE_CHECKING:
    from commtrace.measures import Measures

_SIGNIFICANT = 0.05


class DecomposedAllReduce(Rule, frozen=True):
    """Two operations do the work of an all_reduce, and take longer.

    What it detects
        A reduce and then a broadcast, or a reduce_scatter and then an all_gather: next to each
        other in one group, of the same bytes, on whatever streams, each time that they run, and
        with nothing in between that could have used the first's result. Their time, from the last
        arrival at the first to the end of the second, is at least ``slower`` times that of an
        all_reduce of the tensor in the same group: as measured in the trace, else by the model
        fitted to its all_reduces, else as a ring relates them. What they take beyond it, in all, is
        at least ``min_step_share`` of the steps. Or the ratio is smaller, as on many ranks, but
        clear (three quarters of the pairs are slower than three quarters of the all_reduces), and
        that is ``large_step_share`` of the steps. Of ``few`` pairs or more, over half have to be
        longer than the all_reduce of the same step; only if that is no chance (a sign test) is the
        claim called certain.
        On CPUs also sums that a program makes by hand of whole tensors: of what one rank gathers,
        or receives from all others, and then broadcasts, scatters or sends them; of what every
        rank broadcasts in turn; of what goes around a ring. Known by what runs behind each call:
        nothing but sums, scaling and copies.

    Why it costs time
        The evidence says, as factors whose product is the ratio: more *bytes* than the
        tensor has; *emulation*, where gloo runs the reduce_scatter as a full all_reduce
        (3/2 of the bytes); *lost pipelining*, where a reduce has to end before its broadcast
        begins (on a ring n/(n-1) of an all_reduce; a reduce_scatter and an all_gather are a
        ring's all_reduce, step by step); the *launch gap* between the two, on the rank where
        it is shortest; *waiting* for ranks that came later to the second; and what remains
        *unexplained*. Medians, so that a cold first instance weighs nothing.

    What to do
        Call all_reduce. Where every rank needs only its shard, keep the reduce_scatter and
        leave out the all_gather. The potential saving is that of the run replayed without the
        first, and with the second taking the all_reduce's time. Of sums by hand it is their
        summing, and what links carry beyond an all_reduce: through one rank on a host of its own
        n times as much, by broadcasts or around a ring n/2 times; of less than 64 kB nothing, but
        where a step has four such or more, as one flat tensor all but one.

    Blind spots
        A trace shows no addresses: that both work on one tensor follows from size, order and from
        nothing but copies and scaling (a division by the number of ranks) running in between. Other
        work between the two makes it look like sharding, and the rule does not fire. Nor does it
        where the same all_gather also runs without its reduce_scatter, as in FSDP. Without an
        all_reduce of the tensor beside it, bytes in excess are not detected.
    """

    explains: ClassVar[tuple[str, ...]] = ("emulated-operation", "exposed-communication")
    same: ClassVar[tuple[str, ...]] = ("byte-inflation",)

    slower: float = 1.25
    min_step_share: float = 0.01
    large_step_share: float = 0.05
    few: int = 10

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per group, size and kind of pair."""
        yield from self._by_hand(run)
        size = run.rows("collectives").ints("size_bytes")
        if size.size and (size == NULL).all():
            raise CannotLook("needs sizes: record with record_shapes=True")
        for pair in pairs(run):
            once = reference(run, pair)
            if once.time_ns <= 0:
                continue  # the trace has no time of the all_reduce
            time = _median(pair, "time")
            cost = (time - once.time_ns) * len(pair.times)
            longer = _longer(pair, once)
            if len(pair.times) >= self.few and 2 * longer <= len(pair.times):
                continue
            slower = time >= self.slower * once.time_ns
            clear = worth_reporting(cost, run, self.large_step_share) and _clear(pair, once)
            if not clear and not (slower and worth_reporting(cost, run, self.min_step_share)):
                continue
            gain = saving(run, _as_one(run, pair, once), cost, self.min_step_share)
            if worth_reporting(gain.cost_ns, run, self.min_step_share):
                yield self._finding(run, pair, once, gain)

    def _by_hand(self, run: Measures) -> Iterator[Finding]:
        for its in sums_by_hand(run):
            flat = flattened(run, its)
            estimate = taken_ns(run, flat)
            if not worth_reporting(estimate, run, self.min_step_share):
                continue
            gain = saving(run, as_all_reduces(run, flat), estimate, self.min_step_share)
            if not worth_reporting(gain.cost_ns, run, self.min_step_share):
                continue
            took, needed = transfer_ns(run, its)
            yield self.finding(
                run.rows("collectives", its.rows),
                summary=summary(its),
                saving=gain,
                operations=distinct(its.operation),
                evidence=(
                    Evidence("transfers, each sum", took / its.sums / 1e6, "ms"),
                    Evidence("all_reduce, as bytes relate them", needed / its.sums / 1e6, "ms"),
                    Evidence("sums", its.sums, "sums"),
                ),
                ruled_out=(
                    "other use of the parts: the operators behind them sum, scale and copy only",
                ),
                advice=advice(run, its, needed),
                # Neighbours that average with each other send around a ring, too.
                confidence="low" if its.way == "ring" else "medium",
                explains=(*self.explains, "late-root", "latency-bound"),
            )

    def _finding(self, run: Measures, pair: Pair, once: Reference, gain: Saving) -> Finding:
        time = _median(pair, "time")
        split = factors(pair, once)
        shown = [in_words(name, value) for name, value in split.items() if counts(value)]
        return self.finding(
            (pair.times.ints("start"), pair.times.ints("end")),
            operations=np.append(
                *(pair.times.ints(name) for name in ("operation", "operation_second"))
            ),
            summary=(
                f"{pair.first} + {pair.second} of {mb(pair.size_bytes)} take "
                f"{multiple(time / once.time_ns)} an all_reduce's time once all ranks are there"
                + (f" ({', '.join(shown)})" if shown else "")
            ),
            streams=pair.streams,
            saving=gain,
            evidence=(
                Evidence(f"time of the pair, median of {len(pair.times)}", time / 1e6, "ms"),
                Evidence(f"all_reduce, {source(once)}", once.time_ns / 1e6, "ms"),
                Evidence("ratio", time / once.time_ns, "x", self.slower),
                Evidence("longer than the all_reduce beside it", _longer(pair, once), "pairs"),
                *(Evidence(f"factor: {name}", value, "x") for name, value in split.items()),
                Evidence(f"{pair.first} alone", _median(pair, "first") / 1e6, "ms"),
                Evidence(f"{pair.second} alone", _median(pair, "second") / 1e6, "ms"),
                *spread(pair, once),
            ),
            ruled_out=tuple(ruled_out(pair, once, len(run.rows("ranks")))),
            advice=self._advice(pair, once) + and_flat(run, _alike(run, pair)),
            confidence=self._confidence(pair, once, len(run.rows("ranks"))),
        )

    def _advice(self, pair: Pair, once: Reference) -> str:
        time = _median(pair, "time")
        advice = (
            f"call all_reduce: {ms(once.time_ns)} instead of {ms(time)}, "
            f"{counted(len(pair.times), 'time')}"
        )
        if pair.inflation > 1:
            advice += (
                f"; or give reduce_scatter an output of 1/{pair.group_size} of the tensor, "
                f"{mb(pair.size_bytes // pair.group_size**2)}"
            )
        if pair.tensor_bytes is None:
            advice += "; the tensor's size is unknown, so bytes were not compared"
        if len(pair.times) == 1:
            advice += (
                ". One observation cannot separate a cold start or noise from the rest: "
                "repeat it, after a warm-up"
            )
        return advice

    def _confidence(
        self, pair: Pair, once: Reference, ranks: int
    ) -> Literal["high", "medium", "low"]:
        if once.how == "expected" or len(pair.times) == 1 or not _clear(pair, once):
            return "low"
        many = min(len(pair.times), once.count) >= self.few
        many = many and at_least(_longer(pair, once), len(pair.times), 0.5) <= _SIGNIFICANT
        # One rank's times hold its waiting, too.
        return "high" if many and once.how == "measured" and ranks > 1 else "medium"

    @staticmethod
    def bad() -> Measures:
        """Beside an all_reduce of 4 MB: 16 MB scattered and gathered, four times its time."""
        return _steps(output=4_000_000, between=False)

    @staticmethod
    def good() -> Measures:
        """Each rank updates its shard of 4 MB before the all_gather: sharding."""
        return _steps(output=1_000_000, between=True)


def _as_one(run: Measures, pair: Pair, once: Reference) -> Edit:
    """Each pair's first is no more, and its second an all_reduce."""

    def edit(lag_ns: Lags) -> Lags:
        operation = run_graph(run).calls.operation
        gone, later = (
            np.isin(operation, pair.times.ints(its)) for its in ("operation", "operation_second")
        )
        return joined(run, later, gone, np.where(later, once.time_ns, 0.0), lag_ns)

    return edit


def _alike(run: Measures, pair: Pair) -> int:
    """How many pairs its group has, of whatever sizes."""
    its = (other for other in pairs(run) if other.communicator == pair.communicator)
    return sum(len(other.times) for other in its)


def _median(pair: Pair, time: str) -> float:
    return median(pair.times.ints(time))


def _clear(pair: Pair, once: Reference) -> bool:
    """Whether the pair's lower quartile is above the all_reduce's upper one."""
    return quantile(pair.times.ints("time"), 0.25) > once.upper_ns


def _longer(pair: Pair, once: Reference) -> int:
    """In how many instances the pair took longer than its all_reduce; else than the usual one."""
    times = pair.times.ints("time")
    alike = len(once.times) == times.size
    return int((times > (np.array(once.times) if alike else once.time_ns)).sum())


def _steps(output: int, *, between: bool) -> Measures:
    run = Tiny(ranks=4)
    half_us = output / 4e6 * 400
    for step in range(10):
        for rank in range(4):
            start = step * 2000
            run.step(rank, step, start, 1900)
            run.collective(rank, "all_reduce", start + 50, 200, size=4_000_000)
            run.collective(rank, "reduce_scatter", start + 300, half_us, size=4 * output)
            if between:
                run.kernel(rank, start + 310 + half_us, 20, name="adam")
            run.collective(rank, "all_gather", start + 340 + half_us, half_us, size=4 * output)
    return run.trace()
