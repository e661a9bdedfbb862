"""For programs that record themselves: a context, a handler for torch.profiler, a step."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from commtrace.errors import UsageError

try:
    import torch
except ModuleNotFoundError as error:
    raise UsageError(f"recording needs PyTorch ({error}): pip install torch") from None

from commtrace.record import extras, profile, without
from commtrace.record.clock import Reading
from commtrace.record.folder import make_folder
from commtrace.record.own_profiler import OWN
from commtrace.record.rank_agreement import Meeting
from commtrace.record.report import one_line

if TYPE_CHECKING:
    from commtrace.record.step_detection import Steps

__all__ = ["count_with", "recording", "step", "trace_handler"]

_Schedule = Callable[[int], torch.profiler.ProfilerAction]
_steps: Steps | None = None


def count_with(steps: Steps | None) -> None:
    """Let :func:`step` count, from now on, or no more."""
    global _steps
    _steps = steps


def step() -> None:
    """Say that a step of the program has ended: ``commtrace record -- train.py`` counts these.

    Once called, optimizers are not counted any more. In a program that runs without
    commtrace it does nothing.
    """
    if _steps is not None:
        _steps.marked()


class recording:  # noqa: N801 - a function to its users
    """Record a part of this program: ``with commtrace.recording("out") as run: …``.

    Every rank makes one with the same ``folder`` and gets ``rank{r}.json.gz`` in it. With a
    ``schedule`` (torch.profiler's) ``run.step()`` ends each step, and the first window that
    the schedule asks for is written; without one, all of the context. After an exception
    what there is is written, marked as partial. To write several windows, use
    :func:`trace_handler`.

    Raises UsageError where this rank's file exists; RecordError where the disk has no room.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        schedule: _Schedule | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._meeting = Meeting()
        self._written = False
        self._began_ns = 0
        self._partial: str | None = None
        without.check()
        self._extras = extras.Extras()
        self._profiler = extras.new_profiler(
            schedule=schedule and self._once(schedule), on_trace_ready=self._ready
        )

    def __enter__(self) -> recording:
        rank = profile.whereabouts()["rank"]
        self._path = self.folder / f"rank{rank}.json.gz"
        try:
            make_folder(self.folder)
        except OSError as error:
            raise UsageError(f"{self.folder}: {error.strerror}; name another folder") from None
        if self._path.exists():
            raise UsageError(f"{self._path} exists, and nothing is overwritten; name a new folder")
        self._meeting.open()
        self._meeting.read()
        self._began_ns = time.time_ns()
        self._profiler.__enter__()
        self._extras.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._partial = one_line(error, sys.argv[1:]) if error else None
        try:
            self._profiler.__exit__(kind, error, trace)
        finally:
            self._extras.stop()
            self._meeting.close()

    def step(self) -> None:
        """A step has ended."""
        self._extras.step(self._profiler.step_num)
        self._profiler.step()

    def _once(self, schedule: _Schedule) -> _Schedule:
        none = torch.profiler.ProfilerAction.NONE
        return lambda step: none if self._written else schedule(step)

    def _ready(self, profiler: torch.profiler.profile) -> None:
        self._written = True
        self._extras.stop()
        if not self._partial:
            self._meeting.read()
        facts = _facts(self._began_ns, self._meeting.readings)
        facts |= self._extras.facts()
        if self._meeting.notes:
            facts["notes"] = self._meeting.notes
        profile.export(profiler, self._path, facts, partial=self._partial)


def trace_handler(
    dir_name: str | Path, worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[torch.profiler.profile], None]:
    """As torch.profiler.tensorboard_trace_handler, for ``on_trace_ready``; traces say more.

    They gain rank, host, all process groups, and the flight recorder's operations where
    TORCH_FR_BUFFER_SIZE is set. The handler raises RecordError where the disk has no room.
    """
    folder = Path(dir_name)
    worker = worker_name or f"{socket.gethostname()}_{os.getpid()}"

    def handler(profiler: torch.profiler.profile) -> None:
        make_folder(folder)
        suffix = ".gz" if use_gzip else ""
        path = folder / f"{worker}.{time.time_ns()}.pt.trace.json{suffix}"
        profile.export(profiler, path, _facts(0, []))
        OWN.moved(path)

    return handler


def _facts(since_ns: int, readings: list[Reading]) -> dict[str, Any]:
    probed = {"clock_probe": [reading.to_dict() for reading in readings]}
    return {**profile.whereabouts(), **probed, **profile.communication(since_ns)}
