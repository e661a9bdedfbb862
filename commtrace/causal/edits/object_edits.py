"""What if no objects were sent: they are pickled before, and unpickled behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.arrays import Bool, Int64, in_order
from commtrace.causal.edits.doing_less import doing_less
from commtrace.causal.edits.run_edits import needing_nobody
from commtrace.causal.replay.graph import Lags
from commtrace.causal.run.builder import HOSTS
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.segments import idle_ns, own_work
from commtrace.comms import POINT_TO_POINT
from commtrace.metrics.run.waits import matched

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["as_tensors", "idling_less", "states_as_tensors", "without_objects"]

_BYTES_PER_NS = 0.004  # pickled or unpickled where they are many small tensors
_USUAL_BYTES_PER_NS = 0.02  # made into lists and pickled, or back
_TENSORS_BYTES_PER_NS = 0.35  # large ones


class _Bounds(NamedTuple):
    """The calls before which objects are pickled, and those before which they are unpickled.

    ``packed`` tell lengths, and ``sent`` are the operations of their objects; ``unpacked`` are
    those right behind calls that ``carry`` objects on the same rank, the operations ``received``.
    A call may be both.
    """

    packed: Int64
    sent: Int64
    unpacked: Int64
    carry: Int64
    received: Int64


def as_tensors(run: Measures, which: Bool, lag_ns: Lags) -> Lags:
    """Tensors are sent in place of objects: nothing is pickled or unpickled, and no lengths told.

    ``which`` flags the calls for objects and for their lengths. What hosts do right before they
    tell lengths, and behind the objects, in which no operator runs, is left out; no more than so
    many bytes take if they are slow to pack, or usually take where CPUs do most of their work in no
    operator. Who gathers nothing unpickles nothing.
    """
    idle = idle_ns(run).sum()
    by_python = (
        run_graph(run).calls.on_cpu.any() and idle > own_work(run).own_ns[:, HOSTS].sum() / 2
    )
    bounds, tell = _bounds(run, which), np.zeros_like(which)
    tell[bounds.packed] = True
    lag = needing_nobody(run, tell, lag_ns)
    return _not_pickled(run, bounds, lag, _USUAL_BYTES_PER_NS if by_python else _BYTES_PER_NS)


def states_as_tensors(run: Measures, which: Bool, lag_ns: Lags) -> Lags:
    """The same of states of models: of their tensors as many bytes take less.

    A model's state with Adam's of 16 MB was pickled in 40 ms and unpickled in 48, one of 38 MB in
    78 and 68 (torch 2.13, one core).
    """
    return _not_pickled(run, _bounds(run, which), lag_ns, _TENSORS_BYTES_PER_NS)


def _not_pickled(run: Measures, bounds: _Bounds, lag_ns: Lags, bytes_per_ns: float) -> Lags:
    calls, its = run_graph(run).calls, matched(run).operations
    size, ranks = its.ints("size_bytes").clip(min=0), its.ints("present").clip(min=1)
    op, root = its.coded("op"), its.ints("root")
    # Of a gather the root gets all that each packs, of a scatter each its part of what it packs;
    # of a broadcast all but the root all of it, and of a message who receives it.
    called = run.rows("collectives").coded("op")
    sends, receives = (called.being(end)[calls.row] for end in POINT_TO_POINT)
    ranks[op.where(POINT_TO_POINT.__contains__)] = 1
    to_root, scatters, spreads = (op.being(its) for its in ("gather", "scatter", "broadcast"))
    from_root = scatters | spreads
    by_root = root[bounds.received] == calls.rank[bounds.unpacked]
    gets = np.where(spreads[bounds.received], ~by_root, by_root | ~to_root[bounds.received])
    gets &= ~sends[bounds.carry]
    gives = ~from_root[bounds.sent] | (root[bounds.sent] == calls.rank[bounds.packed])
    gives &= ~receives[bounds.packed]
    each = size / ranks
    idle = np.asarray(idle_ns(run), dtype=np.float64)
    most = np.zeros(calls.rank.size)
    packs, unpacks = np.where(from_root, size, each), np.where(scatters, each, size)
    most[bounds.packed] += gives * packs[bounds.sent] / bytes_per_ns
    most[bounds.unpacked] += gets * unpacks[bounds.received] / bytes_per_ns
    return doing_less(run, np.minimum(idle, most), lag_ns)


def without_objects(run: Measures, which: Bool, lag_ns: Lags) -> Lags:
    """These calls (a flag for each) are not made, and nothing is pickled or unpickled for them.

    Before it tells lengths the sender's host has as much to do as the receiver's with least to do,
    and behind the objects a receiver's has no more than the sender's.
    """
    calls, root = run_graph(run).calls, matched(run).operations.ints("root")
    own = own_work(run).own_ns[:, HOSTS].astype(np.float64)
    bounds, less = _bounds(run, which), np.zeros(calls.rank.size)
    both = (bounds.packed, bounds.sent, True), (bounds.unpacked, bounds.received, False)
    for at, operation, by_sender in both:
        sends = calls.rank[at] == root[operation]
        mine = sends if by_sender else ~sends
        least = np.full(root.size, np.inf)
        np.minimum.at(least, operation[~mine], own[at[~mine]])
        beyond = (own[at] - least[operation])[mine].clip(min=0)
        less[at[mine]] = np.maximum(less[at[mine]], beyond)
    return doing_less(run, less, needing_nobody(run, which, lag_ns))


def _bounds(run: Measures, which: Bool) -> _Bounds:
    calls, its = run_graph(run).calls, matched(run).operations
    lengths = its.coded("dtype").being("int64")[calls.operation]
    order = in_order(calls.rank.astype(np.int64), calls.launch_ns)
    # scatter_object_list tells the lengths of its parts behind these, which are unpickled then.
    tells_behind = (lengths & its.coded("op").being("scatter")[calls.operation])[order]
    tells_behind[1:] &= which[order[:-1]]
    order = order[~tells_behind]
    here, behind = order[:-1], order[1:]
    same = calls.rank[here] == calls.rank[behind]
    tell = same & which[here] & lengths[here] & which[behind]
    carry = same & which[here] & ~lengths[here]
    return _Bounds(
        here[tell],
        calls.operation[behind[tell]].astype(np.int64),
        behind[carry],
        here[carry],
        calls.operation[here[carry]].astype(np.int64),
    )


def idling_less(run: Measures, which: Bool, lag_ns: Lags) -> Lags:
    """The hosts do nothing before these calls (a flag for each) in which no operator runs."""
    return doing_less(run, np.where(which, idle_ns(run), 0.0), lag_ns)
