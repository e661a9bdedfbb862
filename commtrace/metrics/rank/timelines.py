"""What one GPU ran, in order, and where it had nothing to run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int64, integers
from commtrace.diagnosis import CannotLook
from commtrace.intervals import Intervals, union
from commtrace.measures import measure
from commtrace.metrics.rank.rows_of import rows_by_device, rows_of_device, rows_of_others
from commtrace.table import Coded

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = ["SMALL_BYTES", "Timeline", "behind", "elsewhere", "ready_ns", "timelines"]

SMALL_BYTES = 1_000_000
"""A copy of fewer costs its launch and the host's waiting for it, not its bytes."""
_NONE = np.empty(0, dtype=np.int64)
_CLOCKS_NS = 5_000  # the GPU's times and the host's may differ by that


class Timeline(Struct, frozen=True):
    """Kernels, copies and fills of a device by start, all streams together.

    The first starts at ``first_ns``. Of those whose launch is known: ``idle_ns`` is how long
    before each of them the device was idle, ``ready_ns`` how long before its start
    the host had launched it, ``kind`` a kernel's or a copy's, None where unknown,
    ``size_bytes`` a copy's, NaN where unknown.
    """

    rank: int
    device: str
    first_ns: int
    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    stream: Int64
    idle_ns: Int64
    kinds: Coded
    size_bytes: npt.NDArray[np.float64]

    @property
    def kind(self) -> npt.NDArray[np.object_]:
        """As words."""
        names = np.asarray((*self.kinds.names, None), dtype=object)
        kind: npt.NDArray[np.object_] = names[self.kinds.codes]
        return kind

    @property
    def with_host(self) -> Bool:
        """Whether it is a copy from or to the host."""
        of_kind = [*(kind in ("HtoD", "DtoH") for kind in self.kinds.names), False]
        with_host: Bool = np.asarray(of_kind)[self.kinds.codes]
        return with_host

    def small_copies(self, below_bytes: float = SMALL_BYTES) -> Bool:
        """Whether it is a copy from or to the host of less."""
        return np.asarray(self.with_host & (self.size_bytes < below_bytes))

    @property
    def ready_ns(self) -> Int64:
        """From launch to start."""
        return self.start_ns - self.launch_ns

    def starved(self) -> Bool:
        """Whether the device was idle before an event because it was not launched yet.

        The usual time from launch to start, when nothing is in the way, is the least that
        one event in ten needs.
        """
        usual = np.percentile(self.ready_ns, 10) if self.ready_ns.size else 0.0
        launched_late = self.launch_ns + usual >= self.start_ns - self.idle_ns
        return (self.idle_ns > 0) & launched_late & (self.ready_ns <= self.idle_ns + usual)

    def held_up(self) -> Bool:
        """Whether the device was idle before an event that was launched before it ran dry."""
        return (self.idle_ns > 0) & (self.ready_ns > self.idle_ns)

    def starved_beside(self, copies: Bool) -> Bool:
        """Whether starved next to one of these copies, which block the host.

        Behind one, or before one where since the last of them nothing was launched ahead.
        What was launched while the copy still ran was not held up by it.
        """
        starved = self.starved() & (self.ready_ns <= self.idle_ns + _CLOCKS_NS)
        place = np.arange(len(copies))
        last_copy = np.maximum.accumulate(np.where(copies, place, -1))
        last_starved = np.maximum.accumulate(np.where(starved, -1, place))
        before = np.concatenate(([-1], last_copy[:-1]))
        return starved & (before >= 0) & (last_starved <= before) & (copies | behind(copies))


def behind(events: Bool) -> Bool:
    """Which come directly behind one of these."""
    return np.concatenate(([False], events[:-1]))


@measure
def timelines(run: Measures) -> tuple[Timeline, ...]:
    """Every GPU's timeline; CannotLook where the trace has no GPU or no launches."""
    if run.kernels.empty and run.copies.empty:
        raise CannotLook("needs work on a GPU")
    if run.kernels["launch_ns"].isna().all() and run.copies["launch_ns"].isna().all():
        raise CannotLook("needs launches: the trace links none to the device's work")
    kernels, copies = _Events(run, "kernels"), _Events(run, "copies")
    return tuple(
        _timeline(rank, device, kernels, copies, run.pauses.get(rank, ()))
        for rank, device in sorted({*kernels.places, *copies.places})
    )


class _Events:
    """A table's columns, and where in it the rows of each rank's devices are."""

    def __init__(self, run: Measures, table: str) -> None:
        frame: pd.DataFrame = getattr(run, table)
        self.places = {
            (rank, device): rows
            for rank, its in rows_by_device(run, table).items()
            for device, rows in its.items()
        }
        self.start_ns = frame["start_ns"].to_numpy()
        self.end_ns = self.start_ns + frame["duration_ns"].to_numpy()
        self.launch_ns = integers(frame["launch_ns"])
        self.stream = frame["stream"].to_numpy()
        self.kind_codes = frame["kind"].cat.codes.to_numpy(np.int32)
        self.kinds = tuple(frame["kind"].cat.categories)
        self.size_bytes = (
            frame["size_bytes"].to_numpy("float64", na_value=np.nan)
            if "size_bytes" in frame
            else np.full(len(frame), np.nan)
        )


def _timeline(
    rank: int,
    device: str,
    kernels: _Events,
    copies: _Events,
    pauses: Iterable[tuple[int, int]],
) -> Timeline:
    parts = [(its, its.places.get((rank, device), _NONE)) for its in (kernels, copies)]
    start, end, launch, stream, size_bytes = (
        np.concatenate([getattr(its, name)[at] for its, at in parts])
        for name in ("start_ns", "end_ns", "launch_ns", "stream", "size_bytes")
    )
    first_copy = len(kernels.kinds)
    codes = [its.kind_codes[at] for its, at in parts]
    kind = np.concatenate((codes[0], np.where(codes[1] < 0, -1, codes[1] + first_copy)))
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    idle = np.concatenate(([0], (start[1:] - np.maximum.accumulate(end)[:-1]).clip(min=0)))
    for begun, over in pauses:  # nobody knows what it ran meanwhile
        idle[(start >= over) & (start - idle <= begun)] = 0
    launched = launch[order] != NULL
    order = order[launched]
    return Timeline(
        rank,
        device,
        int(start[0]),
        start[launched],
        end[launched],
        launch[order],
        stream[order],
        idle[launched],
        Coded(kind[order], (*kernels.kinds, *copies.kinds)),
        size_bytes[order],
    )


def elsewhere(line: Timeline, run: Measures) -> Intervals:
    """When the rank's other devices computed or copied; who communicates may wait for this one."""
    kernels, copies = (
        rows_of_others(run, table, line.rank, line.device) for table in ("kernels", "copies")
    )
    parts = (kernels[kernels["kind"] == "compute"], copies)
    start, duration = (
        np.concatenate([part[name] for part in parts]) for name in ("start_ns", "duration_ns")
    )
    return union(start, start + duration)


def ready_ns(calls: pd.DataFrame, run: Measures) -> Int64:
    """When each was launched, and the compute launched before it on its device was done.

    On the rank's own clock; ``calls`` are rows of ``collectives`` with a known launch.
    """
    ready = np.array(calls["launch_ns"], dtype=np.int64)
    places: Any = calls.groupby(["rank", "device"], observed=True, sort=False).indices
    for (rank, device), at in places.items():
        its = rows_of_device(run, "kernels", rank, device)
        its = its[(its["kind"] == "compute") & its["launch_ns"].notna()]
        its = its.sort_values("launch_ns", kind="stable")
        launched = its["launch_ns"].to_numpy(dtype=np.int64)
        done = np.maximum.accumulate((its["start_ns"] + its["duration_ns"]).to_numpy())
        before = np.searchsorted(launched, ready[at])
        ready[at] = np.maximum(ready[at], np.append(done, 0)[before - 1])
    return ready
