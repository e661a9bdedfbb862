"""What the latency of a run's operations is, and how that is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, structs

from commtrace.arrays import NULL, Bool, Float64, Int64, rows_by
from commtrace.comms import EVEN, POINT_TO_POINT, members
from commtrace.diagnosis import Evidence
from commtrace.expect import Link, Model, fit, nccl_latency_ns
from commtrace.measures import measure
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.bandwidth import KIND, served, typical_ns
from commtrace.metrics.run.group_hosts import host_count
from commtrace.quantiles import median, quantile, quantiles
from commtrace.table import Rows
from commtrace.topology import usual_link

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["TINY_BYTES", "Latency", "Served", "by_constants_ns", "latency_of"]

TINY_BYTES = 4_096
"""No link needs time for so few."""
_SMALL_BYTES = 131_072  # moved in no time by any link
_PAIR, _FAR = 2, 16  # sizes, so many times as large
_SELDOM = 0.1  # of the small messages
_MANY, _UNLIKE, _SAME, _FEW = 100, 2.0, 1.1, 0.05  # messages, their sizes, their times, outliers
_WITHIN_GB_S, _BETWEEN_GB_S = 1.0, 0.1  # slow links, so that latency is not overstated
_NEAR = 2.0  # times the least latency that NCCL's constants know
_AT_MOST = 5.0  # the same of what is measured against larger ones
_NO_PART = 0.1  # of a time: what moving takes no more of leaves it all to latency


class Latency(Struct, frozen=True):
    """One operation's latency, how it is known, and of how large ones.

    In a row the next begins ``next_ns`` after it at the latest. Where it is assumed, ``assumed``
    says from what, and ``link`` is what a large one is moved over, if that is known: what is
    neither may be latency, too.
    """

    ns: float
    origin: str
    most_bytes: int
    next_ns: float
    assumed: str = ""
    link: Link | None = None

    @property
    def of_larger(self) -> bool:
        """Whether larger ones of the group tell it."""
        return self.link is not None and not self.assumed

    @property
    def of_link(self) -> tuple[Evidence, ...]:
        """What large ones are moved at."""
        if self.link is None:
            return ()
        how = "bus bandwidth of" if self.of_larger else "assumed of"
        name = f"{how} one in their place, {self.link.name}"
        return (Evidence(name, self.link.usual_gb_s, "GB/s"),)


class Served(Struct, frozen=True, eq=False):
    """Operations, each one's place among its communicator's, and what its kind takes typically."""

    operations: Rows
    place: Int64
    typical_ns: Float64

    def take(self, which: Int64 | Bool) -> Served:
        """Some of them."""
        return Served(self.operations.take(which), self.place[which], self.typical_ns[which])


def by_constants_ns(
    run: Measures, op: str, group: str | None, protocol: str, algorithms: Sequence[str] = ("Ring",)
) -> float:
    """By NCCL's constants, the least of some algorithms; 0 where a group's ranks are not known.

    A message is between two ranks, however many its group has.
    """
    ranks = 2 if op in POINT_TO_POINT else len(members(group))
    if ranks < 2:
        return 0.0
    nodes = min(host_count(run, group) or 1, ranks)
    ways = ({"algorithm": way, "protocol": protocol} for way in algorithms)
    return min(nccl_latency_ns(op, ranks, nodes=nodes, **way) for way in ways)


def latency_of(run: Measures, some: Served, max_bytes: int, max_residual: float) -> Latency | None:
    """The latency of operations of one kind but for their sizes; None if unknown."""
    if model := _fitted(some.operations, max_residual):
        return Latency(model.latency_ns, "fitted from this trace", max_bytes, model.latency_ns)
    if (some.operations.ints("ranks") == NULL).any():
        return None
    op, ranks = str(some.operations.coded("op").at(0)), int(some.operations.ints("ranks")[0])
    nodes = min(max(len(set(hosts(run).values())), 1), ranks)
    if run.rows("groups").coded("backend").being("nccl").any():
        ns, constants = nccl_latency_ns(op, ranks, nodes=nodes), "NCCL's tuning constants"
        if op not in POINT_TO_POINT:
            measured = _alike(some, max_bytes) or _as_larger(run, some, max_bytes, ns)
            if measured is not None:
                return measured
        tiny = None if op in POINT_TO_POINT else _beyond_moving(some, nodes, _NO_PART)
        if tiny is not None and tiny.ns > ns:
            return structs.replace(tiny, most_bytes=max_bytes, next_ns=ns)
        group = some.operations.coded("communicator").at(0)
        link = usual_link(run, one_host=host_count(run, group) == 1)
        return (link and _left_by(link, some, max_bytes, ns)) or Latency(
            ns, f"by {constants}", max_bytes, ns, f"from {constants}", link
        )
    # A message that was posted early takes as long as the other end lets it.
    return None if op in POINT_TO_POINT else _beyond_moving(some, nodes)


def _fitted(some: Rows, max_residual: float) -> Model | None:
    """The model of what each size takes in the median, however much one message varies.

    None if messages' medians are off by more than that in the mean, or if all are tiny.
    """
    size, number = np.unique(some.ints("size_bytes"), return_inverse=True)
    usual = quantiles(number, some.ints("transfer_ns"), 50, size.size)
    if size[-1] <= TINY_BYTES:
        return None  # whatever makes some take longer than others, it is not their bytes
    if size.size == _PAIR and size[1] >= _FAR * size[0]:
        return _through(size.astype(np.float64), usual, len(some))
    model = fit(size.astype(np.float64), usual)
    if model is None:
        return None
    off = np.abs(usual / [model.time_ns(one) for one in size.tolist()] - 1)
    return model if np.average(off, weights=np.bincount(number)) <= max_residual else None


def _through(size: Float64, usual: Float64, points: int) -> Model | None:
    """The model that two sizes far apart leave no choice of; None if it has no latency."""
    per_byte = (usual[1] - usual[0]) / (size[1] - size[0])
    latency = float(usual[0] - size[0] * per_byte)
    return Model(latency, float(1 / per_byte), 0.0, points) if min(latency, per_byte) > 0 else None


def _alike(some: Served, max_bytes: int) -> Latency | None:
    """What small messages of unlike sizes take, if that is the same, and these are many."""
    size = some.operations.ints("size_bytes")
    small = size <= max_bytes
    if small.sum() < _MANY or size[small].max() < _UNLIKE * size[small].min():
        return None
    least, most = (quantile(some.typical_ns[small], share) for share in (_FEW, 1 - _FEW))
    if most > _SAME * least:
        return None
    return Latency(least, "what all sizes take", int(size[small].max()), least)


def _as_larger(run: Measures, some: Served, max_bytes: int, known_ns: float) -> Latency | None:
    """What the rate at which their group moves far more leaves of small ones' time.

    What gathers and what reduces move their bytes alike. Several times what NCCL's constants know
    has another cause.
    """
    op, group = (str(some.operations.coded(name).at(0)) for name in ("op", "communicator"))
    every = _even(run).get(group)
    if every is None:
        return None
    large = every.take(~every.coded("op").being(op))
    moved, rate = _moved(large), _moved(large) / typical_ns(large)
    far = moved >= _FAR * _moved(some.operations).max()
    if op not in EVEN or not far.any():
        return None
    gb_s = median(rate[far])
    link = Link(f"as larger {large.take(far).coded('op').at(0)}s", gb_s, gb_s)
    left_ns = some.typical_ns - _moved(some.operations) / gb_s
    ns = quantile(left_ns[some.operations.ints("size_bytes") <= max_bytes], _SELDOM)
    origin = f"what is left of it at {gb_s:.3g} GB/s"
    return Latency(ns, origin, max_bytes, ns, link=link) if 0 < ns <= _AT_MOST * known_ns else None


@measure
def _even(run: Measures) -> dict[str, Rows]:
    """The operations ``served`` whose ranks move as much each, if exact, by communicator."""
    every = served(run).only(*KIND, "factor", "transfer_ns")
    its = served(run).flags("exact") & every.coded("op").where(EVEN.__contains__)
    every = every.take(its)
    groups = rows_by(every.coded("communicator"))
    return {str(name): every.take(rows) for (name,), rows in groups.items()}


def _moved(its: Rows) -> Float64:
    """The bytes that each rank sends."""
    return its.ints("size_bytes") * its.floats("factor")


def _left_by(link: Link, some: Served, max_bytes: int, least_ns: float) -> Latency | None:
    """What small messages take beyond moving over a link, if that is near NCCL's constants.

    These are the least: in practice half as much again is met, and small messages move slower, too,
    which larger ones would not. What is far beyond them has another cause.
    """
    small = some.operations.ints("size_bytes") <= max_bytes
    left_ns = (some.typical_ns - _moved(some.operations) / link.usual_gb_s)[small]
    ns = quantile(left_ns, _SELDOM) if left_ns.size else np.nan
    if not least_ns < ns <= _NEAR * least_ns:
        return None
    origin = f"what is left of it at {link.usual_gb_s:g} GB/s"
    assumed = f"from what {link.name} usually reaches"
    return Latency(ns, origin, max_bytes, least_ns, assumed, link)


def _beyond_moving(some: Served, nodes: int, part: float = np.inf) -> Latency | None:
    """What small messages of some sizes take least, beyond moving at a slow link's bandwidth.

    Of those that moving takes no more than a ``part`` of the time of. That of a tenth of them: what
    comes seldom may have met idle cores by chance.
    """
    gb_s = _WITHIN_GB_S if nodes == 1 else _BETWEEN_GB_S
    moving_ns = _moved(some.operations) / gb_s
    small = some.operations.ints("size_bytes") <= _SMALL_BYTES
    small &= moving_ns <= part * some.typical_ns  # not if a factor is unknown
    if not small.any():
        return None
    ns = quantile((some.typical_ns - moving_ns)[small], _SELDOM)
    return Latency(ns, f"what is left of it at {gb_s:g} GB/s", _SMALL_BYTES, ns) if ns > 0 else None
