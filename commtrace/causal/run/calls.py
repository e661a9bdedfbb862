"""The communication of a run as its causal model needs it: every call on every rank, as arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from commtrace.arrays import (
    NULL,
    Bool,
    Int32,
    Int64,
    Signed,
    among,
    codes,
    distinct,
    fewest,
    first_rows,
    in_order,
    most,
    nth,
)
from commtrace.causal.run.fan_out import fanned_out
from commtrace.causal.run.roots import from_root_ns, to_root_ns
from commtrace.causal.run.telling_bytes import largest_bytes, telling_bytes
from commtrace.comms import FROM_ROOT, POINT_TO_POINT, TO_ROOT
from commtrace.diagnosis import CannotLook
from commtrace.few_bytes import Integers, if_one
from commtrace.heap import passing
from commtrace.measures import measure
from commtrace.metrics.run.group_dimensions import dimensions_of, kin
from commtrace.metrics.run.waits import matched
from commtrace.packed import Packed
from commtrace.table import Coded
from commtrace.units import numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "Calls",
    "calls",
    "kernels_of",
    "op_and_dimension",
    "shares_kernel",
]

_FLAGS = ("asynchronous", "is_root", "from_root", "to_root", "is_p2p", "is_send", "on_cpu")


class Calls(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """Rows of ``collectives`` that have a time on the run's clock, by rank, thread and launch.

    ``row`` is the row of ``collectives``, and of ``waits``, which has when each arrived and was
    done; all times are on the run's clock. ``thread`` is the host's, ``worker`` numbers gloo's
    threads or the GPU's streams; ``last_ns`` is when all arrived whom it needs; ``asynchronous`` is
    -1 where that is unknown.
    ``kind`` numbers op, dimension and size, and ``place`` this kind and which of that kind it is in
    its rank's step: two ranks' calls of one place and step are alike. Those that few ask for are
    ``packed``, and unpacked each time; numbers have as few bytes as they need, and what all have
    in common is in memory once.
    """

    waits: Packed
    row: Int32
    rank: Signed
    operation: Signed
    packed: Mapping[str, Integers]
    asynchronous: npt.NDArray[np.int8]
    kind: Signed
    place: Signed
    is_root: Bool
    from_root: Bool
    to_root: Bool
    is_p2p: Bool
    is_send: Bool
    on_cpu: Bool

    @property
    def step(self) -> Int64:
        """The number of its ``ProfilerStep#n``; NULL outside of all."""
        return self.packed["step"].values()

    @property
    def thread(self) -> Int64:
        """The host's that made it; NULL where that is unknown."""
        return self.packed["thread"].values()

    @property
    def worker(self) -> Int64:
        """A number for gloo's thread, or the GPU's stream."""
        return self.packed["worker"].values()

    @passing
    def launch_ns(self) -> Int64:
        """When it was made."""
        return self.packed["launch_ns"].values()

    @passing
    def start_ns(self) -> Int64:
        """When it arrived."""
        return self.waits.some(self.row).ints("arrival_ns")

    @passing
    def end_ns(self) -> Int64:
        """When it was done."""
        return np.maximum(self.waits.some(self.row).ints("end_ns"), self.start_ns)

    @passing
    def last_ns(self) -> Int64:
        """When all arrived whom it needs."""
        return self.packed["last_ns"].values()

    @passing
    def first_step(self) -> Int64:
        """The step of the first of each rank's step."""
        return self.packed["step"].values(self.first)

    @passing
    def in_step(self) -> Signed:
        """A number for the rank and the step of each."""
        return fewest(codes(self.step, self.rank))

    @passing
    def first(self) -> Int64:
        """The first of each rank's step, by these numbers."""
        return first_rows(self.in_step)

    @passing
    def in_place(self) -> Signed:
        """A number for the step and the place of each."""
        return fewest(codes(self.step, self.place))

    @passing
    def of_kind(self) -> Signed:
        """A number for the step and the kind of each."""
        return fewest(codes(self.step, self.kind))

    def taken(self, rows: Any) -> Calls:
        """Some of them."""
        names = (name for name in self.__struct_fields__ if name not in ("waits", "packed"))
        packed = {name: Integers(its.base, its.above[rows]) for name, its in self.packed.items()}
        columns = {name: getattr(self, name)[rows] for name in names}
        return Calls(waits=self.waits, packed=packed, **columns)


@measure
def calls(run: Measures) -> Calls:
    """Every call of the run. CannotLook where ranks have no clock in common."""
    table, waits = run.rows("collectives"), matched(run).waits
    rank, thread = map(table.ints, ("rank", "thread"))
    arrival, end = map(waits.ints, ("arrival_ns", "end_ns"))
    if (arrival == NULL).any():
        untied = numbered("rank", distinct(rank[arrival == NULL]).tolist())
        raise CannotLook(f"needs one clock for all ranks: nothing ties {untied} to the others'")
    launch = table.ints("launch_ns")
    # A send or recv of gloo arrives with its call: `arrival` is that already.
    ahead = end - table.ints("duration_ns") - table.ints("start_ns")
    began = np.where(launch == NULL, arrival, launch + ahead)
    op = table.coded("op")
    is_p2p = op.where(POINT_TO_POINT.__contains__)
    has_messages = bool(is_p2p.any())
    # Siblings call alike. Of stages, which send messages, sizes tell what is of which.
    of = op_and_dimension(run, None if has_messages else kin(run))
    size = largest_bytes(run) if has_messages else telling_bytes(run, of)
    kind = fewest(codes(of, size))
    order = in_order(rank, thread, began)
    every = Calls(
        waits=waits,
        row=np.arange(rank.size, dtype=np.int32),
        rank=fewest(rank),
        operation=fewest(waits.ints("operation")),
        packed={
            "step": Integers.of(_steps(rank, table.ints("step"), waits.ints("operation"))),
            "thread": Integers.of(thread),
            "worker": Integers.of(codes(rank, table.ints("stream"))),
            "launch_ns": Integers.of(np.minimum(began, arrival)),
        },
        asynchronous=np.maximum(table.ints("asynchronous"), -1).astype(np.int8),
        kind=kind,
        place=kind,
        is_root=matched(run).operations.ints("root")[waits.ints("operation")] == rank,
        from_root=op.where(FROM_ROOT.__contains__),
        to_root=op.where(TO_ROOT.__contains__),
        is_p2p=is_p2p,
        is_send=op.being("send"),
        on_cpu=table.coded("device").being("cpu"),
    ).taken(order)
    packed = {**every.packed, "last_ns": Integers.of(_last(every))}
    flags = {name: if_one(getattr(every, name)) for name in _FLAGS}
    place = _nth_of_kind(codes(every.rank, every.step), every.kind)
    if has_messages:
        peer = table.ints("peer")[order]
        place = _alike(every, peer, codes(op_and_dimension(run, kin(run)), size)[order])
        fanned, step = fanned_out(every, peer)
        place = np.where(fanned < 0, place, fanned + int(place.max()) + 1)
        packed["step"] = Integers.of(step)
    return replace(every, packed=packed, place=fewest(place), **flags)


def _steps(rank: Int64, step: Int64, operation: Int64) -> Int64:
    """The step of each call: of ranks that mark none, the one in which others take part in it."""
    without = ~among(rank, distinct(rank[step != NULL]))
    if not without.any() or without.all():
        return step
    of = most(operation, step, int(operation.max()) + 1)
    return np.where(without, of[operation], step)


def _nth_of_kind(in_step: Int64, kind: Signed) -> Int64:
    """A number for kind and which of that kind a call is in its rank's step."""
    return codes(kind, nth(codes(in_step, kind)))


def _alike(every: Calls, peer: Int64, of_kin: Int64) -> Int64:
    """The same of calls among which are messages, as far as they are alike.

    Messages, what is called right behind them, and what else is called between them are alike only
    between ranks that make the same calls in the same order in a step, by their kinds ``of_kin``,
    with one and another peer in turn: in a pipeline they do not. Of tensor parallelism's operations
    one stage's are of a forward pass where another's are of a backward.
    """
    in_step = codes(every.rank, every.step)
    behind = np.append(False, every.is_p2p[:-1] & (in_step[1:] == in_step[:-1]))
    ordered = every.is_p2p | behind | _between(every, in_step)
    orders = _orders(in_step, _nth_of_kind(in_step, of_kin), peer)
    return codes(_nth_of_kind(in_step, every.kind), np.where(ordered, orders, -1))


def _orders(in_step: Int64, places: Int64, peer: Int64) -> Int64:
    """Of each call a number for all that its rank calls in its step, in order."""
    made: dict[int, list[tuple[int, int]]] = {}
    peers: dict[int, dict[int, int]] = {}
    for step, place, its in zip(in_step.tolist(), places.tolist(), peer.tolist(), strict=True):
        known = peers.setdefault(step, {})
        made.setdefault(step, []).append((place, known.setdefault(its, len(known))))
    orders: dict[tuple[tuple[int, int], ...], int] = {}
    order = {step: orders.setdefault(tuple(its), len(orders)) for step, its in made.items()}
    return np.asarray([order[step] for step in in_step.tolist()], dtype=np.int64)


def _between(every: Calls, in_step: Int64) -> Bool:
    """The calls, but messages, of a kind that is called between messages of a step."""
    at, sent = np.arange(in_step.size), np.flatnonzero(every.is_p2p)
    first, last = np.full(in_step.max() + 1, in_step.size), np.full(in_step.max() + 1, -1)
    np.minimum.at(first, in_step[sent], sent)
    np.maximum.at(last, in_step[sent], sent)
    between = ~every.is_p2p & (first[in_step] < at) & (at < last[in_step])
    return ~every.is_p2p & np.isin(every.kind, every.kind[between])


def op_and_dimension(run: Measures, kin: Mapping[str | None, str] | None = None) -> Int64:
    """A number for op and dimension, else communicator, of each row of ``collectives``.

    For op and what siblings share, if that is given.
    """
    communicator = matched(run).matches.coded("communicator")
    if kin is None:
        dimensions = dimensions_of(run, Coded.of(communicator.names)).decoded()
        its = zip(dimensions, communicator.names, strict=True)
        kin = {name: dimension or name for dimension, name in its}
    where = Coded.of([kin.get(name, name) for name in communicator.names])
    return codes(
        run.rows("collectives").coded("op"), np.append(where.codes, -1)[communicator.codes]
    )


def _last(every: Calls) -> Int64:
    """When all were there whom a call needs, itself included."""
    number = every.operation
    count = int(number.max(initial=-1)) + 1
    start_ns, end_ns = every.start_ns, every.end_ns
    last = most(number, start_ns, count)[number]
    if every.from_root.any():
        last = np.where(every.from_root, from_root_ns(every), last)
    if every.to_root.any():
        last = np.where(every.to_root & ~every.is_root, to_root_ns(every), last)
    sent_before = every.is_p2p & every.is_send & (end_ns <= last)
    last = np.where(sent_before, start_ns, last)
    kernel = kernels_of(every)
    return most(kernel, last, last.size)[kernel]


def kernels_of(every: Calls) -> Int64:
    """A call of the same kernel: messages that were called for together are one of the GPU's.

    It is done when all of them are, whichever came last.
    """
    kernel = np.arange(every.rank.size)
    rows = np.flatnonzero(every.is_p2p & ~every.on_cpu)
    its = every.taken(rows)
    same = codes(its.rank, its.worker, its.start_ns, its.end_ns)
    kernel[rows] = rows[first_rows(same)][same]
    return kernel


def shares_kernel(every: Calls) -> Bool:
    """Whether another call is of the same kernel."""
    kernel = kernels_of(every)
    return np.bincount(kernel, minlength=kernel.size)[kernel] > 1
