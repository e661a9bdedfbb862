"""Which of the program's labelled ranges a host was in when it launched something."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Bool, Int64, codes, first_rows, rows_by
from commtrace.measures import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commtrace.measures import Measures

__all__ = ["Labels", "is_own", "labels"]

_FRAMEWORK = re.compile(
    r"ProfilerStep|PyTorch Profiler|DistributedDataParallel\.|FSDP::|FullyShardedDataParallel"
    r"|Optimizer\.(?:step|zero_grad)#|enumerate\(DataLoader\)#|autograd::|aten::|c10d::|torch::"
    r"|nccl:|rccl:|gloo:|\[pl\]|Torch-Compiled Region|CompiledFunction|CompiledFxGraph"
    r"|## Call CompiledFxGraph|TorchDynamo|AOTDispatcher|Pregraph bytecode"
    r"|[^\s:]+_data: (?:.*, )?compile_id=|.*\(dynamo_timed\)$"
)
_DEEPEST = 256  # ranges within ranges; more is damage, and would cost its square


def is_own(label: str) -> bool:
    """Whether it is the program's own label: not one that PyTorch, or what is built on it, sets.

    >>> is_own("forward"), is_own("Optimizer.step#SGD.step"), is_own("FSDP::pre_forward")
    (True, False, False)
    """
    return _FRAMEWORK.match(label) is None


class Labels(Struct, frozen=True):
    """The labelled ranges of all ranks, as arrays; by rank, thread and start.

    ``label`` is the place of the range's label in ``names``; ``own`` says whether it is the
    program's own. ``outer`` is the range that encloses it, ``parent`` the innermost of the
    program's own that does; -1 is none.

    What a thread without a label launches counts for the labels of the rank's main thread,
    which is that of its steps: so autograd's threads work for the range that waits for them.
    """

    names: tuple[str, ...]
    rank: Int64
    start_ns: Int64
    end_ns: Int64
    label: Int64
    own: Bool
    outer: Int64
    parent: Int64
    main: dict[int, tuple[int, int]]
    threads: dict[int, dict[int, tuple[int, int]]]

    def innermost(self, rank: Int64, launch_ns: Int64, thread: Int64) -> Int64:
        """The range in which each event was launched, -1 where in none, or it is unknown.

        A range of the event's own thread comes before one of the main thread.
        """
        found = np.full(rank.size, -1, dtype=np.int64)
        for (of_rank,), at in rows_by(rank).items():
            for its, span in self.threads.get(of_rank, {}).items():
                mine = at[thread[at] == its]
                found[mine] = self._open(launch_ns[mine], span)
            if of_rank in self.main:
                rest = at[found[at] < 0]
                found[rest] = self._open(launch_ns[rest], self.main[of_rank])
        return found

    def _open(self, times_ns: Int64, span: tuple[int, int]) -> Int64:
        return _innermost(times_ns, span, self.start_ns, self.end_ns, self.outer)

    def around(self, at: Int64) -> tuple[Int64, Int64]:
        """Each event with each range that it is in: the place in ``at``, and the range."""
        rows = np.arange(at.size)
        parts = [(rows[:0], at[:0])]
        for _ in range(_DEEPEST):
            inside = at >= 0
            rows, at = rows[inside], at[inside]
            if not rows.size:
                break
            parts.append((rows, at))
            at = self.outer[at]
        return np.concatenate([r for r, _ in parts]), np.concatenate([a for _, a in parts])


@measure
def labels(run: Measures) -> Labels:
    """The labelled ranges of a run, and what encloses them."""
    steps = run.rows("steps")
    table = steps.take(steps.coded("label").known)
    rank, thread, start, duration = map(table.ints, ("rank", "thread", "start_ns", "duration_ns"))
    order = np.lexsort((-duration, start, thread, rank))
    rank, thread, start = rank[order], thread[order], start[order]
    end = start + duration[order]
    named = table.coded("label").take(order)
    own = named.where(is_own)
    threads: dict[int, dict[int, tuple[int, int]]] = {}
    for its, number, span in _threads(rank, thread):
        threads.setdefault(its, {})[number] = span
    main = {its: spans[_main(spans, start, end)] for its, spans in threads.items()}
    for its, number in _of_steps(run):
        if its in main:
            main[its] = threads[its].get(number, (0, 0))
    outer = np.full(order.size, -1, dtype=np.int64)
    for spans in threads.values():
        for span in spans.values():
            outer[slice(*span)] = _enclosing(start[slice(*span)], end[slice(*span)], span[0])
    for its, spans in threads.items():
        for span in spans.values():
            if span != main[its]:
                # What a framework labels on a thread of its own works for the main thread.
                rows = np.arange(*span)
                rows = rows[(outer[rows] < 0) & ~own[rows]]
                outer[rows] = _innermost(start[rows], main[its], start, end, outer)
    parent = _own_around(outer, own)
    label = named.codes.astype(np.int64)
    return Labels(named.names, rank, start, end, label, own, outer, parent, main, threads)


def _innermost(
    times: Int64, span: tuple[int, int], start: Int64, end: Int64, outer: Int64
) -> Int64:
    """The innermost range of one thread that is open at each time; -1 where none is."""
    first, last = span
    at = first + np.searchsorted(start[first:last], times, side="right") - 1
    at[at < first] = -1
    for _ in range(_DEEPEST):
        over = (at >= 0) & (end[at] <= times)
        if not over.any():
            break
        at[over] = outer[at[over]]
    return at.astype(np.int64)


def _own_around(outer: Int64, own: Bool) -> Int64:
    parent: Int64 = outer.copy()
    for _ in range(_DEEPEST):
        framework = (parent >= 0) & ~own[parent]
        if not framework.any():
            break
        parent[framework] = outer[parent[framework]]
    return parent


def _enclosing(start: Int64, end: Int64, first: int) -> list[int]:
    """The range around each of one thread's, which come by start, longest first; or -1."""
    outer: list[int] = []
    is_open: list[int] = []
    ends = end.tolist()
    for i, begun in enumerate(start.tolist()):
        while is_open and ends[is_open[-1]] <= begun:
            is_open.pop()
        outer.append(first + is_open[-1] if is_open else -1)
        is_open.append(i)
    return outer


def _threads(rank: Int64, thread: Int64) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Rank, thread, and from where to where their ranges stand."""
    cuts = np.flatnonzero((np.diff(rank) != 0) | (np.diff(thread) != 0)) + 1
    bounds = [0, *cuts.tolist(), rank.size] if rank.size else []
    for first, last in pairwise(bounds):
        yield int(rank[first]), int(thread[first]), (first, last)


def _main(spans: dict[int, tuple[int, int]], start: Int64, end: Int64) -> int:
    """The thread that is in labelled ranges for longest."""
    length = {
        thread: int((end[slice(*span)] - start[slice(*span)]).sum())
        for thread, span in spans.items()
    }
    return max(length, key=lambda thread: length[thread])


def _of_steps(run: Measures) -> Iterator[tuple[int, int]]:
    steps = run.rows("steps")
    own = steps.take(~steps.coded("label").known)
    first = own.take(first_rows(codes(own.ints("rank"))))
    return zip(first.ints("rank").tolist(), first.ints("thread").tolist(), strict=True)
