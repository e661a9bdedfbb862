"""What one rank's GPUs did, as arrays in the order of its starts, and a way to find in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import NULL, Bool, Int64, distinct
from commtrace.causal.rank.moments import Moments
from commtrace.metrics.rank.rows_of import rows_of_rank
from commtrace.table import Coded, Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "ROUNDING_NS",
    "DeviceWork",
    "Numbered",
    "rank_tables",
]

ROUNDING_NS = 2_000
"""Old traces round starts and durations to whole microseconds, each by itself."""
_EXCHANGES = re.compile("(?i)sendrecv")
_STREAMS = 1 << 40  # more than any number of a stream
_TABLES = ("kernels", "copies", "blocking_calls", "synchronisations", "collectives", "steps")


def rank_tables(run: Measures, rank: int) -> dict[str, Rows]:
    """One rank's rows of the tables that ``device_graph`` reads."""
    return {table: rows_of_rank(run, table, rank) for table in _TABLES}


class Numbered(Struct, frozen=True):
    """Distinct values, and the number from 0 of each."""

    values: Int64

    @classmethod
    def of(cls, values: Int64) -> Numbered:
        """All that occur."""
        return cls(distinct(values))

    def number(self, values: Int64) -> Int64:
        """The numbers of some values; -1 for others."""
        at = np.searchsorted(self.values, values)
        found = np.append(self.values, NULL)[at] == values
        return np.where(found & (at < self.values.size), at, -1)


class DeviceWork(Struct, frozen=True, dict=True):
    """A rank's kernels and copies in the order of their starts.

    ``table`` is 0 for a row of ``kernels``, 1 for one of ``copies``. ``stream`` counts the pairs
    of device and stream, ``name`` the kernels' names and the copies' kinds, ``thread`` the host
    threads; where the launch is unknown ``thread`` is -1, ``launch_ns`` NULL. What ``exchanges``
    sends and receives, where not every call need be waited for.
    """

    table: Int64
    row: Int64
    start_ns: Int64
    end_ns: Int64
    launch_ns: Int64
    thread: Int64
    stream: Int64
    name: Int64
    step: Int64
    communicates: Bool
    exchanges: Bool
    to_host: Bool
    pageable: Bool
    threads: Numbered
    devices: dict[str | None, int]
    streams: Numbered

    @classmethod
    def of(cls, tables: Mapping[str, Rows]) -> DeviceWork:
        """The work in one rank's ``kernels`` and ``copies``; threads also of ``blocking_calls``."""
        kernels, copies = tables["kernels"], tables["copies"]

        def both(name: str) -> Int64:
            return np.concatenate((kernels.ints(name), copies.ints(name)))

        start_ns, launch_ns, thread = both("start_ns"), both("launch_ns"), both("thread")
        places = [table.coded("device") for table in (kernels, copies)]
        every = dict.fromkeys(name for part in places for name in (*part.names, None))
        devices = {name: number for number, name in enumerate(every)}
        device = np.concatenate([_codes(part, devices) for part in places])
        known = (launch_ns != NULL) & (thread != NULL)
        calling = tables["blocking_calls"].ints("thread")
        threads = Numbered.of(np.append(thread[known], calling))
        streams = Numbered.of(device * _STREAMS + both("stream"))
        memory = copies.coded("memory").being("pageable")
        kind = kernels.coded("kind").being("communication")
        no_kernel, no_copy = np.zeros(kind.size, np.bool_), np.zeros(memory.size, np.bool_)
        named = kernels.coded("name"), copies.coded("kind")
        name = np.append(named[0].codes, named[1].codes + np.int32(1 + len(named[0].names)))
        size = kind.size, memory.size
        order = np.lexsort((launch_ns, start_ns))
        return cls(
            table=np.repeat(np.arange(2), size)[order],
            row=np.concatenate((np.arange(size[0]), np.arange(size[1])))[order],
            start_ns=start_ns[order],
            end_ns=(start_ns + both("duration_ns"))[order],
            launch_ns=np.where(known, launch_ns, NULL)[order],
            thread=np.where(known, threads.number(thread), -1)[order],
            stream=streams.number(device * _STREAMS + both("stream"))[order],
            name=name.astype(np.int64)[order],
            step=both("step")[order],
            communicates=np.append(kind, no_copy)[order],
            exchanges=np.append(named[0].where(_exchanges), no_copy)[order],
            to_host=np.append(no_kernel, copies.coded("kind").being("DtoH"))[order],
            pageable=np.append(no_kernel, memory)[order],
            threads=threads,
            devices=devices,
            streams=streams,
        )

    @cached_property
    def launched(self) -> Moments:
        """The launches on each stream; of work out of order that of what ran before it."""
        known = self.thread >= 0
        before_all = int(self.launch_ns[known].min()) - 1 if known.any() else 0
        launch = np.where(known, self.launch_ns, before_all)
        for rows in self.by_stream:
            launch[rows] = np.maximum.accumulate(launch[rows])
        return Moments(self.stream, launch)

    @cached_property
    def ended(self) -> Moments:
        """The ends on each stream."""
        return Moments(self.stream, self.end_ns)

    @cached_property
    def by_stream(self) -> list[Int64]:
        """The rows of each stream, in order."""
        order = np.argsort(self.stream, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self.stream[order])) + 1)

    def stream_numbers(self, table: Rows, stream: str) -> Int64:
        """The numbers of the streams that another table names; -1 for those without work."""
        named = table.ints(stream)
        device = _codes(table.coded("device"), self.devices)
        number = self.streams.number(device * _STREAMS + named)
        return np.where((device < 0) | (named == NULL), -1, number)


def _exchanges(kernel: str) -> bool:
    return _EXCHANGES.search(kernel) is not None


def _codes(column: Coded, known: Mapping[str | None, int]) -> Int64:
    codes: Int64 = np.asarray([known.get(name, -1) for name in (*column.names, None)])
    found: Int64 = codes[column.codes]
    return found
