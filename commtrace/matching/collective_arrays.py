"""The table of collectives as arrays, with all that tells one operation from another."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int64, codes, distinct, first_rows, least, most
from commtrace.comms import FROM_ROOT, POINT_TO_POINT, SYNCHRONISING, TO_ROOT, members
from commtrace.gpu_numbers import first_ranks
from commtrace.matching.communicators import communicators
from commtrace.matching.probes import Probed, probed
from commtrace.table import Coded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commtrace.measures import Measures
    from commtrace.table import Rows

__all__ = ["Collectives", "rows_of", "split"]


class Collectives(Struct, frozen=True, dict=True):
    """One entry per row of ``collectives``; codes are -1 where the trace does not show.

    ``called`` is when an operation was enqueued where it runs on a CPU, else its start.
    ``signature`` is equal where operation, type, size and root are, as far as all ranks know them.
    ``awaited`` is whose coming others wait for, as far as that is known, and ``awaits`` who waits
    for others: of an operation with a root, the root or all but it.
    ``seq_key`` is equal for what one communicator gave one number; ``expected`` ranks are
    NULL if unknown. ``is_one`` says that all groups that the trace lists have the same ranks, but
    those of one. ``clock_of`` has, for each rank, the lowest rank of its host; an
    unnamed host has one rank. Where none has a name, ``likely_clock_of`` has the same as the
    numbers of GPUs tell. ``probes`` are the recorder's readings of ranks' clocks.
    """

    rank: Int64
    step: Int64
    start: Int64
    called: Int64
    end: Int64
    communicator: Int64
    communicators: tuple[str, ...]
    is_one: bool
    signature: Int64
    known: Bool
    synchronises: Bool
    awaited: Bool
    awaits: Bool
    p2p: Bool
    sends: Bool
    peer: Int64
    on_cpu: Bool
    comms_id: Int64
    seq_key: Int64
    recorder: Bool
    expected: Int64
    clock_of: dict[int, int]
    likely_clock_of: dict[int, int]
    probes: dict[int, Probed]

    @cached_property
    def lowest(self) -> int | None:
        """The lowest rank that has rows; None without any."""
        return int(self.rank.min()) if self.rank.size else None

    @cached_property
    def span(self) -> tuple[int, int]:
        """First start and last end of any operation of the lowest rank that has some."""
        if self.lowest is None:
            return 0, 0
        its = self.rank == self.lowest
        return int(self.start[its].min()), int(self.end[its].max())


def rows_of(run: Measures) -> Collectives:
    """The arrays of a trace."""
    table = run.rows("collectives")
    rank, start, op = table.ints("rank"), table.ints("start_ns"), _operations(table)
    identity = communicators(run.rows("groups"))
    communicator, names = _communicators(rank, table.coded("group"), identity)
    p2p = op.where(POINT_TO_POINT.__contains__)
    on_cpu = table.coded("device").being("cpu")
    root = _roots(table, codes(communicator, op.codes))
    is_root, has_root = root == rank, root != NULL
    from_root, to_root = (op.where(its.__contains__) for its in (FROM_ROOT, TO_ROOT))
    met = op.where((*SYNCHRONISING, *POINT_TO_POINT).__contains__)
    seq, launch = table.ints("seq"), table.ints("launch_ns")
    numbered = (seq != NULL) & (communicator >= 0) & ~p2p
    # The backends of one group count by themselves: gloo on the CPU, NCCL on the GPU.
    seq_key = np.where(numbered, codes(communicator, on_cpu, seq), -1)
    return Collectives(
        rank=rank,
        step=table.ints("step"),
        start=start,
        called=np.where(on_cpu & (launch != NULL), launch, start),
        end=start + table.ints("duration_ns"),
        communicator=communicator,
        communicators=names,
        is_one=len({its for name in identity.values() if len(its := members(name)) > 1}) < 2,
        signature=_signatures(table, op, root, communicator, p2p),
        known=op.known,
        synchronises=op.where(SYNCHRONISING.__contains__),
        awaited=met | (has_root & ((from_root & is_root) | (to_root & ~is_root))),
        awaits=met | (has_root & ((from_root & ~is_root) | (to_root & is_root))),
        p2p=p2p,
        sends=op.being("send"),
        peer=table.ints("peer"),
        on_cpu=on_cpu,
        comms_id=table.coded("comms_id").codes.astype(np.int64),
        seq_key=seq_key,
        recorder=table.coded("group_provenance").being("flight-recorder"),
        expected=np.where(p2p, 2, _group_ranks(table.ints("group_size"), communicator, names)),
        clock_of=_clocks(run.rows("ranks"), rank),
        likely_clock_of=_likely_clocks(run.rows("ranks"), table),
        probes=probed(run),
    )


def _operations(table: Rows) -> Coded:
    """What was called; what ran, by its kernel's name, where no host called it: in a CUDA graph."""
    called, ran = table.coded("op"), table.coded("executed")
    by_name = np.where(ran.known, ran.codes + len(called.names), -1)
    which = np.where(called.known, called.codes, by_name).astype(np.int32)
    return Coded(which, (*called.names, *ran.names))


def split(rows: Int64, by: Int64) -> list[Int64]:
    """Rows cut where another value begins."""
    starts = [0, *(np.flatnonzero(np.diff(by)) + 1).tolist(), rows.size]
    return [rows[first:last] for first, last in pairwise(starts) if first < last]


def _clocks(ranks: Rows, used: Int64) -> dict[int, int]:
    """The lowest rank of each rank's host: of the ranks known, and of those with operations."""
    host, rank = ranks.coded("host").codes, ranks.ints("rank")
    clock = {one: one for one in distinct(np.append(rank, used)).tolist()}
    for one in distinct(host[host >= 0]):
        here = rank[host == one]
        clock |= dict.fromkeys(here.tolist(), int(here.min()))
    return clock


def _likely_clocks(ranks: Rows, table: Rows) -> dict[int, int]:
    if ranks.coded("host").known.any():
        return {}
    rank, device = table.ints("rank"), table.coded("device")
    at = first_rows(codes(rank, device))
    return first_ranks(zip(rank[at].tolist(), map(str, device.take(at).decoded()), strict=True))


def _communicators(
    rank: Int64, group: Coded, identity: Mapping[tuple[int, str | None], str]
) -> tuple[Int64, tuple[str, ...]]:
    pair = codes(rank, group)
    first = first_rows(pair)
    names: dict[str, int] = {}
    of_pair = np.full(first.size, -1, dtype=np.int64)
    for number, its in enumerate(
        zip(rank[first].tolist(), group.take(first).decoded(), strict=True)
    ):
        if (name := identity.get(its)) is not None:
            of_pair[number] = names.setdefault(name, len(names))
    return of_pair[pair], tuple(names)


def _group_ranks(given: Int64, communicator: Int64, names: tuple[str, ...]) -> Int64:
    sizes = np.asarray([*(len(members(name)) or NULL for name in names), NULL])
    return np.where(given == NULL, sizes[communicator], given)


def _roots(table: Rows, kind: Int64) -> Int64:
    """The roots; NULL where all of several ranks name themselves, as some backends' do."""
    rank, root = table.ints("rank"), table.ints("root")
    count = int(kind.max(initial=-1)) + 1
    others = np.bincount(kind, root != rank, minlength=count)
    several = least(kind, rank, count) != most(kind, rank, count)
    return np.where(((others == 0) & several)[kind], NULL, root)


def _signatures(table: Rows, called: Coded, root: Int64, communicator: Int64, p2p: Bool) -> Int64:
    """A property that some rank of a group does not know of an operation tells nothing there.

    The sizes of an uneven all_to_all differ by rank.
    """
    op = np.where(p2p, -2, called.codes)
    kind = codes(communicator, op)
    properties = (
        table.coded("dtype").codes.astype(np.int64),
        np.where(called.being("all_to_all"), 0, table.ints("size_bytes")),
        root,
    )
    shared = []
    for values in properties:
        unknown = np.zeros(int(kind.max(initial=-1)) + 1, dtype=np.bool_)
        unknown[kind[(values == -1) | (values == NULL)]] = True
        shared.append(np.where(unknown[kind], -1, values))
    return codes(op, *shared)
