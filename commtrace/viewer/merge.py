"""The traces of several ranks as one, on one time axis."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
from isal import igzip

from commtrace.errors import UsageError
from commtrace.viewer.events import Id, Rank, identifier, read_rank
from commtrace.viewer.lanes import Lanes

__all__ = ["merge"]

_FIRST_FREE_TID = 1_000_000_000  # above every thread and stream


class _Event(msgspec.Struct, omit_defaults=True, gc=False):
    """A trace event as it is written. Its arguments stay the bytes that they are."""

    ph: str
    pid: int
    tid: int
    name: str | None = None
    cat: str | None = None
    ts: msgspec.Raw | None = None
    dur: msgspec.Raw | None = None
    id: int | None = None
    bp: str | None = None
    s: str | None = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


def merge(files: Mapping[int, Path], target: Path) -> int:
    """Write the traces of some ranks as one gzipped Chrome JSON, for Perfetto.

    Processes are named after their rank and get pids of their own, flows ids of their
    own; times count from the earliest event of all. Slices of one thread that overlap
    without nesting go to further lanes of that thread, because Perfetto would drop them.
    Returns how many events are left out for want of a phase or a usable time. Raises
    TraceError for a file that is no trace, UsageError where ``target`` cannot be written.
    """
    # Every file is read twice, so that one rank at a time is in memory.
    starts = [start for number in files if (start := _first_ns(number, files[number])) is not None]
    base_ns = min(starts, default=0)
    digits = len(str(max(files)))
    ids = itertools.count(1)
    separator, left_out = b"", 0
    try:
        with igzip.open(target, "wb", compresslevel=1) as out:
            out.write(b'{"traceEvents":[\n')
            for number in sorted(files):
                rank = read_rank(number, files[number])
                left_out += rank.left_out
                for event in _renamed(rank, f"rank {number:0{digits}}", base_ns, ids):
                    out.write(separator + msgspec.json.encode(event))
                    separator = b",\n"
            out.write(b"\n]}\n")
    except OSError as error:
        raise UsageError(
            f"{target}: cannot be written ({error.strerror}): set TMPDIR to a folder with room"
        ) from None
    return left_out


def _first_ns(number: int, path: Path) -> int | None:
    start_ns = read_rank(number, path).start_ns
    return int(start_ns[0]) if start_ns.size else None


def _renamed(rank: Rank, name: str, base_ns: int, ids: Iterator[int]) -> Iterator[_Event]:
    """The rank's events as they go into the merged trace, and the names of their tracks."""
    pids: dict[Id, int] = defaultdict(lambda: next(ids))
    flows: dict[tuple[str | None, Id], int] = defaultdict(lambda: next(ids))
    tracks: dict[tuple[Id, Id, int], tuple[int, int]] = {}
    lanes: dict[tuple[Id, Id], Lanes] = defaultdict(Lanes)
    lane_at: dict[tuple[Id, Id, int], int] = {}
    times = zip(rank.start_ns.tolist(), rank.duration_ns.tolist(), strict=True)
    for event, (start_ns, duration_ns) in zip(rank.events, times, strict=True):
        pid, tid = identifier(event.pid), identifier(event.tid)
        is_slice = event.ph == "X"
        if is_slice:
            lane = lanes[pid, tid].place(start_ns, start_ns + duration_ns)
            lane_at[pid, tid, start_ns] = lane
        else:
            lane = lane_at.get((pid, tid, start_ns), 0)
        if (pid, tid, lane) not in tracks:
            own = isinstance(tid, int) and 0 <= tid < _FIRST_FREE_TID and lane == 0
            tracks[pid, tid, lane] = pids[pid], int(tid) if own else _FIRST_FREE_TID + next(ids)
        yield _Event(
            event.ph,
            *tracks[pid, tid, lane],
            name=event.name,
            cat=event.cat,
            ts=_micros(start_ns - base_ns),
            dur=_micros(duration_ns) if is_slice else None,
            id=None if event.id is None else flows[event.cat, identifier(event.id)],
            bp=event.bp,
            s=event.s,
            args=event.args,
        )
    for (pid, tid, lane), track in tracks.items():
        process = rank.names.get(("process_labels", pid, ""), str(pid))
        thread = rank.names.get(("thread_name", pid, tid), str(tid))
        yield _metadata("process_name", track, name=f"{name} {process}".strip())
        yield _metadata("process_sort_index", track, sort_index=rank.number)
        if thread:
            label = f"{thread} (lane {lane + 1})" if lane else thread
            yield _metadata("thread_name", track, name=label)


def _micros(ns: int) -> msgspec.Raw:
    return msgspec.Raw(b"%d.%03d" % divmod(ns, 1000))


def _metadata(what: str, track: tuple[int, int], **args: str | int) -> _Event:
    return _Event("M", *track, name=what, args=msgspec.Raw(msgspec.json.encode(args)))
