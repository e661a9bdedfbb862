"""Copies between host and GPU that run while nothing computes, though there is much to compute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from commtrace.arrays import NULL, Bool, Float64, Int64, distinct
from commtrace.causal.edits.rank_edits import copying_within
from commtrace.causal.replay.graph import Lags
from commtrace.causal.savings import saving
from commtrace.diagnosis import LOOKED, CannotLook, Evidence, Finding
from commtrace.intervals import Intervals, covered, intersect, subtract, total, union, united
from commtrace.metrics.rank.activity import Activity, device_activity
from commtrace.metrics.run.whole import of_time, share_pct, step_count, whole, worth_reporting
from commtrace.quantiles import median
from commtrace.rules._rule import Rule, too
from commtrace.synthetic import Tiny
from commtrace.table import Rows
from commtrace.units import counted, mb, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures

_SEVERAL = 4  # a step: between layers rather than at an end of the step
_APART = 0.1  # of a copy: a cast of what came is no layer


class ExposedCopy(Rule, frozen=True):
    """Pinned copies between host and GPU run while the GPU computes nothing.

    What it detects
        Copies of at least ``min_bytes`` from or to pinned memory, on every GPU that computes, whose
        time without compute or communication beside it is worth ``min_step_share`` of the steps'
        time, as far as there is as much compute without a copy beside it. The potential saving is
        that of a run whose copies take only what is hidden already, and what compute is too short
        to hide. They have to be between computations several times a step, as those of layers are:
        what is copied at one place of it, as a batch, may not be there any earlier. It was, where
        the GPU computed for as long as the copy took between its call and its start: it only
        waited for what its stream was to do first. Else it is told, and is no finding.

    Why it costs time
        A GPU copies and computes at once, on engines of their own. Where each layer's weights are
        copied only when the layer is next, one waits for the other by turns.

    What to do
        Copy one or two layers ahead, on a stream of its own, and let the computing stream wait for
        the event behind the copy, not the host (``Stream.wait_event``, ``record_stream``). What
        goes to the host is copied likewise while the next layer computes.

    Blind spots
        Whether what is copied is known early enough: a trace does not show it. What lies ahead
        takes memory. Without steps nothing tells layers from batches. Copies from pageable memory
        wait for the host, and are a finding of their own.
    """

    explains: ClassVar[tuple[str, ...]] = ("launch-gap",)

    min_bytes: int = 1_000_000
    min_step_share: float = 0.05

    def check(self, run: Measures) -> Iterator[Finding]:
        """At most one finding."""
        copies = run.rows("copies")
        mine = copies.coded("kind").where(("HtoD", "DtoH").__contains__)
        mine &= (copies.ints("size_bytes") >= self.min_bytes) & (copies.ints("duration_ns") > 0)
        mine &= copies.coded("memory").being("pinned")
        if not mine.any():
            which = f"of {mb(self.min_bytes)} or more between a GPU and pinned memory"
            raise CannotLook(f"needs copies {which}")
        if not whole(run).in_steps:
            raise CannotLook("needs steps that hold the run's work, to tell layers from batches")
        known = run.rows("copies", np.flatnonzero(mine))
        each = [
            _Exposed.of(_of(known, rank, device), work)
            for (rank, device), work in device_activity(run).items()
            if device != "cpu" and work.compute is not None
        ]
        every = each
        if not (often := all(one.places >= _SEVERAL * step_count(run) for one in every)):
            each = [one.queued for one in every]
        estimate = _of_all_ns(each)
        if not worth_reporting(estimate, run, self.min_step_share):
            batches_ns = 0 if often else _of_all_ns([one.to_gpu for one in every])
            if worth_reporting(batches_ns, run, self.min_step_share):
                raise CannotLook(
                    f"{LOOKED}{ms(batches_ns)} of copies from pinned memory run with nothing "
                    "computed beside them: if a batch is there by then, copy it on a stream of its "
                    "own while the one before computes"
                )
            return

        def edit(lag_ns: Lags) -> Int64:
            lag: Int64 = lag_ns.astype(np.int64)
            for one in each:
                start_ns = one.copies.ints("start_ns")
                copying_within(run, one.rank, start_ns, one.left_ns, lag)
            return lag

        gain = saving(run, edit, estimate, self.min_step_share)
        if not worth_reporting(gain.cost_ns, run, self.min_step_share):
            return
        worst = max(each, key=lambda one: one.hideable_ns)
        ranks = distinct([one.rank for one in each]).tolist()
        yield self.finding(
            worst.when,
            summary=f"{_what(worst.copies)} of rank {worst.rank} run for {ms(worst.exposed_ns)} "
            f"with nothing computed beside them, and nothing is copied for "
            f"{ms(worst.free_ns)} of its compute{too(ranks, worst.rank, run)}",
            ranks=tuple(ranks),
            streams=tuple(distinct(worst.copies.ints("stream")).tolist()),
            saving=gain,
            evidence=(
                Evidence("copied with no compute beside", worst.exposed_ns, "ns"),
                Evidence("compute with no copy beside", worst.free_ns, "ns"),
                Evidence(
                    f"share {of_time(run)}",
                    share_pct(worst.exposed_ns, run),
                    "%",
                    100 * self.min_step_share,
                ),
            ),
            ruled_out=("pageable memory: the copies are of pinned memory",),
            advice=_ADVICE["HtoD" in worst.copies.coded("kind").occurring()] if often else _BATCH,
        )

    @staticmethod
    def bad() -> Measures:
        """Before each layer of 400 µs its weights are copied for 300 µs."""
        return _layers(ahead_us=0)

    @staticmethod
    def good() -> Measures:
        """The same, a layer ahead."""
        return _layers(ahead_us=400)


_ADVICE = {
    True: "copy the next layer's tensors while this one computes: on a stream of their own, one or "
    "two ahead, and let the computing stream wait for the event behind them (Stream.wait_event)",
    False: "copy what a layer leaves while the next one computes: on a stream of its own, which "
    "waits for the event behind the layer (Stream.wait_event, record_stream)",
}


_BATCH = (
    "copy the next batch while this one computes: on a stream of its own (non_blocking=True, from "
    "pinned memory), and let the computing stream wait for the event behind it (Stream.wait_event, "
    "record_stream); the loader has to have it ready by then"
)


class _Exposed(Struct, frozen=True, eq=False):
    """A device's copies: ``when`` nothing ran beside them, and what computes beside none.

    ``behind_ns`` is what the device computed from each one's call to its start; ``places`` counts
    those of ``when`` with compute between them, not the tensors of a batch.
    """

    copies: Rows
    behind_ns: Int64
    when: Intervals
    free_ns: int
    places: int

    @classmethod
    def of(cls, copies: Rows, work: Activity) -> _Exposed:
        """Those of one device, which did this work."""
        copied = union(*copies.when())
        compute = work.compute or copied
        when = subtract(copied, united(compute, work.communication))
        between_ns = covered(when[1][:-1], when[0][1:], compute)
        places = np.count_nonzero(between_ns > _APART * median(copies.ints("duration_ns")))
        start_ns, launch_ns = copies.ints("start_ns"), copies.ints("launch_ns")
        called_ns = np.where(launch_ns == NULL, start_ns, np.minimum(launch_ns, start_ns))
        behind_ns = covered(called_ns, start_ns, compute)
        free_ns = total(subtract(compute, copied))
        return cls(copies, behind_ns, when, free_ns, int(places) + 1)

    @property
    def queued(self) -> _Exposed:
        """Those to the GPU before which it computed, once they were called, for as long."""
        its = self.to_gpu
        return its._some(its.behind_ns >= its.copies.ints("duration_ns"))

    @property
    def to_gpu(self) -> _Exposed:
        """Those to the GPU."""
        return self._some(self.copies.coded("kind").being("HtoD"))

    def _some(self, which: Bool) -> _Exposed:
        mine = self.copies.take(which)
        when = intersect(self.when, union(*mine.when()))
        return replace(self, copies=mine, behind_ns=self.behind_ns[which], when=when)

    @property
    def rank(self) -> int:
        """The rank; -1 of none."""
        ranks = self.copies.ints("rank")
        return int(ranks[0]) if ranks.size else -1

    @property
    def exposed_ns(self) -> int:
        """For how long nothing runs beside them."""
        return total(self.when)

    @property
    def hideable_ns(self) -> int:
        """How much of that compute could hide."""
        return min(self.exposed_ns, self.free_ns)

    @property
    def left_ns(self) -> Float64:
        """What each takes that is hidden already, or that compute is too short to hide."""
        start_ns, took_ns = self.copies.ints("start_ns"), self.copies.ints("duration_ns")
        alone = covered(start_ns, start_ns + took_ns, self.when)
        return took_ns - alone * (self.hideable_ns / max(self.exposed_ns, 1))


def _of_all_ns(each: list[_Exposed]) -> int:
    """What compute could hide on every GPU: with one's mended the others would wait no less."""
    return min((one.hideable_ns for one in each), default=0)


def _of(copies: Rows, rank: int, device: str) -> Rows:
    return copies.take((copies.ints("rank") == rank) & copies.coded("device").being(device))


def _what(copies: Rows) -> str:
    kinds = " and ".join(copies.coded("kind").occurring())
    size = mb(float(copies.ints("size_bytes").sum()))
    return f"{counted(len(copies), f'{kinds} copy')}, {size} in all,"


def _layers(ahead_us: float) -> Measures:
    run = Tiny()
    for step in range(2):
        run.step(0, step, step * 8_000, 8_000)
        for layer in range(10):
            at = step * 8_000 + 500 + layer * 700
            way = {"source": "host", "destination": "cuda:0", "memory": "pinned"}
            run.copy(0, at - ahead_us, 300, kind="HtoD", size=4_000_000, stream=9, **way)
            run.kernel(0, at + 300, 400)
    return run.trace()
