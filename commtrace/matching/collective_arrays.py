"""The table of collectives as arrays, with all that tells one operation from another."""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int64, codes, integers
from commtrace.comms import POINT_TO_POINT, SYNCHRONISING, members
from commtrace.matching.communicators import communicators
from commtrace.matching.probes import Probed, probed

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures
    from commtrace.packed import Packed

__all__ = ["Rows", "rows_of", "split"]


class Rows(Struct, frozen=True, dict=True):
    """One entry per row of ``collectives``; codes are -1 where the trace does not show.

    ``called`` is when an operation was enqueued where it runs on a CPU, else its start.
    ``signature`` is equal where operation, type, size and root are, as far as all ranks know them;
    ``seq_key`` is equal for what one communicator gave one number; ``expected`` ranks are
    NULL if unknown. ``clock_of`` has, for each rank, the lowest rank of its host; an
    unnamed host has one rank. ``probes`` are the recorder's readings of ranks' clocks.
    """

    rank: Int64
    start: Int64
    called: Int64
    end: Int64
    communicator: Int64
    communicators: tuple[str, ...]
    signature: Int64
    known: Bool
    synchronises: Bool
    p2p: Bool
    sends: Bool
    peer: Int64
    on_cpu: Bool
    comms_id: Int64
    seq_key: Int64
    recorder: Bool
    expected: Int64
    clock_of: dict[int, int]
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


def rows_of(run: Measures) -> Rows:
    """The arrays of a trace."""
    table = run.collective_columns
    rank, start = integers(table["rank"]), integers(table["start_ns"])
    op = table["op"]
    communicator, names = _communicators(table, run.groups)
    p2p = op.isin(POINT_TO_POINT).to_numpy()
    on_cpu = table["device"].eq("cpu").to_numpy()
    seq, launch = integers(table["seq"]), integers(table["launch_ns"])
    numbered = (seq != NULL) & (communicator >= 0) & ~p2p
    # The backends of one group count by themselves: gloo on the CPU, NCCL on the GPU.
    seq_key = np.where(numbered, codes(communicator, on_cpu, seq), -1)
    return Rows(
        rank=rank,
        start=start,
        called=np.where(on_cpu & (launch != NULL), launch, start),
        end=start + integers(table["duration_ns"]),
        communicator=communicator,
        communicators=names,
        signature=_signatures(table, communicator, p2p),
        known=op.notna().to_numpy(),
        synchronises=op.isin(SYNCHRONISING).to_numpy(),
        p2p=p2p,
        sends=op.eq("send").to_numpy(),
        peer=integers(table["peer"]),
        on_cpu=on_cpu,
        comms_id=table["comms_id"].cat.codes.to_numpy().astype(np.int64),
        seq_key=seq_key,
        recorder=table["group_provenance"].eq("flight-recorder").to_numpy(),
        expected=np.where(p2p, 2, _group_ranks(table, communicator, names)),
        clock_of=_clocks(run),
        probes=probed(run),
    )


def split(rows: Int64, by: Int64) -> list[Int64]:
    """Rows cut where another value begins."""
    starts = [0, *(np.flatnonzero(np.diff(by)) + 1).tolist(), rows.size]
    return [rows[first:last] for first, last in pairwise(starts) if first < last]


def _clocks(run: Measures) -> dict[int, int]:
    host = run.ranks["host"].cat.codes.to_numpy(np.int64)
    rank = integers(run.ranks["rank"])
    present = np.union1d(rank, integers(run.collective_columns["rank"]))
    clock = {one: one for one in present.tolist()}
    for one in np.unique(host[host >= 0]):
        here = rank[host == one]
        clock |= dict.fromkeys(here.tolist(), int(here.min()))
    return clock


def _communicators(
    table: pd.DataFrame | Packed, groups: pd.DataFrame
) -> tuple[Int64, tuple[str, ...]]:
    identity = communicators(groups)
    group = table["group"].cat.codes.to_numpy(np.int64)
    rank = integers(table["rank"])
    pair = codes(rank, group)
    names: dict[str, int] = {}
    of_pair = np.full(int(pair.max(initial=-1)) + 1, -1, dtype=np.int64)
    categories = list(table["group"].cat.categories)
    for number, row in zip(*np.unique(pair, return_index=True), strict=True):
        if group[row] >= 0:
            name = identity.get((int(rank[row]), categories[group[row]]))
            if name is not None:
                of_pair[number] = names.setdefault(name, len(names))
    return of_pair[pair], tuple(names)


def _group_ranks(
    table: pd.DataFrame | Packed, communicator: Int64, names: tuple[str, ...]
) -> Int64:
    sizes = np.asarray([*(len(members(name)) or NULL for name in names), NULL])
    given = integers(table["group_size"])
    return np.where(given == NULL, sizes[communicator], given)


def _signatures(table: pd.DataFrame | Packed, communicator: Int64, p2p: Bool) -> Int64:
    """A property that some rank of a group does not know of an operation tells nothing there.

    The sizes of an uneven all_to_all differ by rank.
    """
    op = np.where(p2p, -2, table["op"].cat.codes.to_numpy(np.int64))
    kind = codes(communicator, op)
    uneven = table["op"].eq("all_to_all").to_numpy()
    properties = (
        table["dtype"].cat.codes.to_numpy(np.int64),
        np.where(uneven, 0, integers(table["size_bytes"])),
        integers(table["root"]),
    )
    shared = []
    for values in properties:
        unknown = np.zeros(int(kind.max(initial=-1)) + 1, dtype=np.bool_)
        unknown[kind[(values == -1) | (values == NULL)]] = True
        shared.append(np.where(unknown[kind], -1, values))
    return codes(op, *shared)
