"""Profiles a window of steps and writes it to one file, with what the profiler does not know."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from isal import igzip

from commtrace import __version__
from commtrace.errors import RecordError
from commtrace.record import flight
from commtrace.record.clock import Clock, Reading
from commtrace.record.extras import Extras, new_profiler
from commtrace.record.folder import create
from commtrace.record.report import one_line

__all__ = [
    "METADATA_KEY",
    "adopt",
    "barrier",
    "communication",
    "end_group",
    "export",
    "record_steps",
    "unstoppable",
    "whereabouts",
]

METADATA_KEY = "commtrace"
"""The top-level key of a trace that holds what commtrace adds."""

_OURS = b'{"%s":' % METADATA_KEY.encode()
_FOLDER = re.compile(rb'("traceName": ")[^\n]*/')
_TAIL_BYTES = 8192  # a path has 4096 at most
_BLOCK_BYTES = 1 << 20
_LETTING_GO_S = 0.1
"""So long gloo's threads have for letting go of their last tensors."""


def record_steps(
    step: Callable[[], None],
    path: Path,
    *,
    warmup: int,
    iterations: int,
    facts: Mapping[str, Any],
    report: AbstractContextManager[Any],
    clock: Clock,
) -> list[Reading]:
    """Run ``step`` unprofiled, then profiled as ProfilerStep#1 …; write the trace to ``path``.

    All ranks of the default group enter the window together. An exception of ``step`` passes
    through ``report`` at once; then what was recorded until there is written. Returns what
    ``clock`` read before and behind the window.
    """
    readings: list[Reading] = []
    began_ns = 0
    why: str | None = None
    # For the profiler all our warm-up is its one step of warm-up.
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=iterations, repeat=1)
    profiler, extras = new_profiler(schedule=schedule), Extras()
    try:
        with profiler, report:
            for _ in range(warmup):
                step()
            readings += clock.read()
            barrier()
            began_ns = time.time_ns()
            profiler.step()
            extras.start()
            for number in range(iterations):
                step()
                profiler.step()
                extras.step(number + 1)
        readings += clock.read()
    except BaseException as stop:
        why = one_line(stop)
        raise
    finally:
        extras.stop()
        if began_ns:
            found = {
                **extras.facts(),
                "clock_probe": [reading.to_dict() for reading in readings],
                **communication(began_ns),
            }
            with unstoppable():
                export(profiler, path, {**facts, **found}, partial=why)
    return readings


def barrier() -> None:
    """Wait for all ranks; NCCL is given the device, or it would guess and warn."""
    nccl = dist.get_backend() == "nccl"
    dist.barrier(device_ids=[torch.cuda.current_device()] if nccl else None)


def end_group(
    destroy: Callable[[dist.ProcessGroup | None], None], group: dist.ProcessGroup | None = None
) -> None:
    """Destroy a group, or all of them, as ``destroy`` does, so that their threads end nothing.

    Nobody waits for gloo's threads: one that lets go of a tensor needs the interpreter, and ends
    the process if that is ending. After the last group they are given a moment for it.
    """
    is_last = group in (None, dist.group.WORLD)
    _keep_groups()
    destroy(group)
    if is_last:
        time.sleep(_LETTING_GO_S)


def _keep_groups() -> None:
    """Have the groups end with the process, and not with the last DDP that knows of them.

    When a group ends torch waits for gloo's threads, with the interpreter in its hands; these may
    wait for that, to let go of a tensor, and both would wait for ever. Nor do they go with the
    interpreter: a thread that wants it then ends the process instead (``std::terminate``). So
    nobody ever lets go of them. Who belongs to them is remembered, too.
    """
    for group in dist.distributed_c10d._world.pg_map:
        _keep(group)
    for config in _configs():
        _ended[config["pg_name"]] = config
        if len(_ended) > _MOST_ENDED:
            del _ended[next(iter(_ended))]


def _keep(group: object) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def export(
    profiler: torch.profiler.profile,
    path: Path,
    facts: Mapping[str, Any],
    *,
    partial: str | None = None,
) -> None:
    """Write a stopped profiler's trace, with ``facts`` under the key ``commtrace``.

    Gzipped, if the name says so. ``partial`` is why it does not hold all that it should.
    Raises RecordError where the disk has no room for all of it; what it has room for is kept.
    """
    with _private(path) as raw:
        whole = _write_raw(profiler, raw)
        why = partial or (None if whole else "cut off: no room left to write it")
        _add(raw, path, {"partial": why, **facts})
    if not whole:
        raise RecordError(f"{path}: cut off: no room left to write it; make room")


def adopt(
    theirs: Path, path: Path, facts: Mapping[str, Any], *, partial: str | None = None
) -> None:
    """Write a trace that another has exported as :func:`export` would have.

    What :func:`commtrace.trace_handler` has written keeps its facts. Raises RecordError where
    the disk has no room.
    """
    with _private(path) as raw:
        opened = igzip.open(theirs, "rb") if theirs.suffix == ".gz" else theirs.open("rb")
        with opened as trace, raw.open("wb") as copy:
            shutil.copyfileobj(trace, copy)
        _add(raw, path, {"partial": partial, **facts})


@contextlib.contextmanager
def _private(path: Path) -> Iterator[Path]:
    """A file for the raw trace: anyone may read it, so that it lies where only its user looks."""
    try:
        with TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent) as private:
            yield Path(private, f"{path.name}.raw")
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}; make room, or use -o elsewhere") from None


@contextlib.contextmanager
def unstoppable() -> Iterator[None]:
    """Let no SIGTERM of a launcher that loses patience leave half a file."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


_MOST_ENDED = 1024
_ended: dict[str, dict[str, Any]] = {}  # groups that have ended, or will, by name


def communication(since_ns: int) -> dict[str, Any]:
    """What the flight recorder noted since then, and all process groups."""
    # The profiler notes the groups when a window opens; those made within it come later, and
    # those that have ended it does not know.
    noted = flight.dump(since_ns)
    groups = _configs()
    known = {config["pg_name"] for config in groups}
    called = {entry["process_group"][0] for entry in (noted or {}).get("entries", ())}
    groups += [_ended[name] for name in sorted(called - known) if name in _ended]
    return {"flight_recorder": noted, "groups": groups or None}


def _configs() -> list[dict[str, Any]]:
    configs: Any = getattr(dist.distributed_c10d, "_get_all_pg_configs", None)
    return [*configs()] if configs and dist.is_initialized() else []


def whereabouts() -> dict[str, Any]:
    """Who this rank is: by the default group, or else by the environment."""
    started = dist.is_available() and dist.is_initialized()
    environment = os.environ
    return {
        "version": __version__,
        "rank": dist.get_rank() if started else int(environment.get("RANK", "0")),
        "world_size": dist.get_world_size() if started else int(environment.get("WORLD_SIZE", "1")),
        "backend": dist.get_backend() if started else None,
        "host": socket.gethostname(),
    }


def _write_raw(profiler: torch.profiler.profile, raw: Path) -> bool:
    """The profiler's own file, and whether there was room for all of it."""
    profiler.export_chrome_trace(str(raw))
    cut = raw.with_name(f"{raw.name}.tmp")  # where Kineto leaves what it could not finish
    if cut.exists():
        cut.replace(raw)
    size = raw.stat().st_size if raw.exists() else 0
    if not size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with raw.open("rb") as trace:
        trace.seek(max(0, size - 64))
        return trace.read().rstrip().endswith(b"}")


def _add(raw: Path, path: Path, facts: Mapping[str, Any]) -> None:
    # The profiler takes metadata only while it records, and this is known afterwards.
    added = _OURS + b" %s," % json.dumps(facts).encode()
    if path.suffix != ".gz":
        with raw.open("rb") as trace, create(path) as file:
            _copy(trace, added, file)
        return
    compressed = BytesIO()
    with raw.open("rb") as trace, igzip.open(compressed, "wb") as file:
        _copy(trace, added, file)
    raw.unlink()  # first: on a full disk it has the room that this needs
    unfinished = raw.with_name(f"{path.name}.part")
    with create(unfinished) as file:
        file.write(compressed.getbuffer())
    unfinished.replace(path)  # who looks for it finds all of it


def _copy(trace: Any, added: bytes, file: Any) -> None:
    """The profiler's file, with what is added at its beginning, and without the path at its end."""
    tail = trace.seek(0, os.SEEK_END) - _TAIL_BYTES
    trace.seek(0)
    head = trace.read(64)
    has_facts = head.startswith(_OURS)
    trace.seek(0 if has_facts else head.index(b"{") + 1)
    file.write(b"" if has_facts else added)
    while (left := tail - trace.tell()) > 0:
        file.write(trace.read(min(left, _BLOCK_BYTES)))
    file.write(_FOLDER.sub(rb"\1", trace.read()))
