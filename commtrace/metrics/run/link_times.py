"""How long transfers between two ranks took, against others of their kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, Float64, Int64, codes, distinct, first_rows, grouped, sums
from commtrace.comms import POINT_TO_POINT
from commtrace.measures import measure
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.bandwidth import SERVED, served
from commtrace.metrics.run.joined_rows import operation_of
from commtrace.metrics.run.message_waits import message_waits
from commtrace.metrics.run.waits import matched
from commtrace.quantiles import median, quantiles
from commtrace.table import Coded, Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["BETWEEN_TWO", "ENDS", "LINK_TIMES", "between_two", "link_times"]

ENDS = ["sender", "receiver"]
_MUCH = 0.5  # of a kind
_LEAST_NS = 100_000  # of a wait for messages: fewer are not known

_LINK = (
    Column("sender", "int64", "The rank that sends; of a group of two the lower one."),
    Column("receiver", "int64", "The other one."),
    Column("across", "bool", "Whether they are not known to be of one host."),
    Column("by_cpu", "bool", "Whether it is moved by threads that need a core, gloo's."),
    Column("on_cpu", "bool", "Whether it is gloo's messages."),
)
BETWEEN_TWO = Table(
    "between_two",
    "one operation that two ranks took part in, by these and its first arrival",
    (
        *SERVED.columns,
        *_LINK,
        Column("burst", "int64", "A number for what is under way between two ranks at one time."),
    ),
)
LINK_TIMES = Table(
    "link_times",
    "one operation that two ranks took part in; of messages of gloo a burst of `between_two`",
    (
        *_LINK,
        Column("count", "int64", "How many these are.", "operations"),
        Column("size_bytes", "int64", "Their S.", "bytes"),
        Column(
            "transfer_ns",
            "int64",
            "The transfer; of messages of gloo, of which no other time is known, what the receiver "
            "or the sender had to wait for them once both had called.",
            "ns",
        ),
        Column("busbw_gb_s", "float64", "What they put on the link in this time.", "GB/s"),
        Column(
            "relative",
            "float64",
            "This time / the median of its kind, other links' if this has half of it.",
        ),
    ),
)


@measure
def between_two(run: Measures) -> Rows:
    """The operations of SERVED that two ranks took part in: BETWEEN_TWO."""
    known = served(run, late=True)
    known = known.take(known.flags("exact") & (known.ints("present") == 2))
    ends, by_cpu = _ends(run, known.ints("operation"))
    order = np.lexsort((known.ints("first_arrival_ns"), *ends[::-1]))
    known, ends, by_cpu = known.take(order), ends[:, order], by_cpu[order]
    return BETWEEN_TWO.rows(
        {
            **known.columns,
            **dict(zip(ENDS, ends, strict=True)),
            "across": _across(run, ends),
            "by_cpu": by_cpu,
            "on_cpu": by_cpu & known.coded("op").where(POINT_TO_POINT.__contains__),
            "burst": _bursts(known, ends),
        }
    )


@measure
def link_times(run: Measures) -> Rows:
    """Each transfer between two ranks, its time against what is usual of its kind: LINK_TIMES.

    Kinds are alike in operation, type and size, within hosts or across them; bursts of messages
    in size to a factor of two.
    """
    known = between_two(run)
    each = known.take(~known.flags("on_cpu"))
    bursts = _waited(known.take(known.flags("on_cpu")), run)
    kinds = codes(each.coded("op"), each.coded("dtype"), each.ints("size_bytes")), _scale(bursts)
    alone = np.ones(len(each), np.int64)
    table = LINK_TIMES.rows({**each.columns, "count": alone, "relative": alone}, bursts.columns)
    kind = codes(np.concatenate(kinds), table.flags("on_cpu"), table.flags("across"))
    pair = np.sort([table.ints(end) for end in ENDS], axis=0)
    usual = _usual_of_others(kind, codes(*pair), table.ints("transfer_ns"))
    return LINK_TIMES.rows({**table.columns, "relative": table.ints("transfer_ns") / usual})


def _usual_of_others(kind: Int64, link: Int64, time_ns: Int64) -> Float64:
    """Of each transfer the median of its kind; of the others', if its link has half of it.

    One link of two would be held against itself.
    """
    usual = quantiles(kind, time_ns, 50, int(kind.max(initial=-1)) + 1)[kind]
    of_both = codes(kind, link)
    count, of_kind = np.bincount(of_both)[of_both], np.bincount(kind)[kind]
    has_much = (count >= _MUCH * of_kind) & (count < of_kind)
    rows = np.flatnonzero((np.bincount(kind, has_much) > 0)[kind])
    for at in grouped(kind[rows]):
        alike = rows[at]
        for one in distinct(link[alike[has_much[alike]]]).tolist():
            mine = link[alike] == one
            usual[alike[mine]] = median(time_ns[alike[~mine]])
    return usual


def _rows_of(run: Measures, operations: Int64) -> tuple[Int64, Int64]:
    """The rows of ``collectives`` of some operations, and which of these each is of."""
    numbers = matched(run).operations.ints("operation")
    place = np.full(numbers.size, -1)
    place[np.searchsorted(numbers, operations)] = np.arange(operations.size)
    of = place[operation_of(run)]
    at = np.flatnonzero(of >= 0)
    return at, of[at]


def _ends(run: Measures, operations: Int64) -> tuple[Int64, Bool]:
    """The sender and the receiver of each, a row for each of these; whether CPUs move it."""
    at, of = _rows_of(run, operations)
    rows = run.rows("collectives", at)
    rank, op, device = rows.ints("rank"), rows.coded("op"), rows.coded("device")
    order = np.lexsort((rank, op.being("recv"), of)).reshape(-1, 2)
    on_cpu = device.being("cpu")[order]
    return rank[order].T, on_cpu[:, 0] & on_cpu[:, 1]


def _across(run: Measures, ends: Int64) -> Bool:
    ranks, place = np.unique(ends, return_inverse=True)
    on = hosts(run)
    one, other = Coded.of([on.get(rank) for rank in ranks.tolist()]).codes[place.reshape(2, -1)]
    return np.asarray((one != other) | (one < 0))


def _bursts(known: Rows, ends: Int64) -> Int64:
    """A number for what two ranks exchange while anything of it is under way."""
    arrived, ended = known.ints("last_arrival_ns"), known.ints("last_end_ns")
    begins = np.ones(arrived.size, dtype=np.bool_)
    for mine in grouped(*ends):
        begins[mine[1:]] = arrived[mine[1:]] >= np.maximum.accumulate(ended[mine])[:-1]
    return np.cumsum(begins)


def _waited(messages: Rows, run: Measures) -> Rows:
    """The bursts of gloo's messages, as LINK_TIMES."""
    burst = codes(messages.ints("burst"))
    first = first_rows(burst)
    at, of = _rows_of(run, messages.ints("operation"))
    receives = run.rows("collectives", at).coded("op").being("recv")
    blocked_ns = message_waits(run).blocked_ns[at]
    of_side = sums(2 * burst[of] + receives, blocked_ns, 2 * first.size)
    time = np.maximum(of_side.reshape(-1, 2).max(axis=1), _LEAST_NS)
    size = sums(burst, messages.ints("size_bytes"), first.size)
    return LINK_TIMES.rows(
        {
            **messages.take(first).columns,
            "count": np.bincount(burst, minlength=first.size),
            "size_bytes": size,
            "transfer_ns": time,
            "busbw_gb_s": size / time,
            "relative": np.ones(first.size),
        }
    )


def _scale(bursts: Rows) -> Int64:
    return np.floor(np.log2(bursts.ints("size_bytes"))).astype(np.int64)
