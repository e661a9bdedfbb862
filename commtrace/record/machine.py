"""What the machine did while a profiler recorded: its cores, and what each step got of them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

from commtrace.record.core_speed import CoreSpeed
from commtrace.record.line_times import LineTimes
from commtrace.record.step_times import StepTimes
from commtrace.record.without import wanted

__all__ = ["Machine"]

_IDLE = (3, 4)  # the columns of /proc/stat that are none of work: idle, iowait
_MOST_CORES = 1024  # of one process
_GUESTS = 8  # from here on what is counted before, too


class _Reading(NamedTuple):
    """The time, what all processes together have worked until then, what this one has; the load."""

    at_s: float
    worked_s: float | None
    own_s: float
    load: float


class Machine:
    """Looks at it from ``start`` to ``stop``, unless the user leaves it out."""

    def __init__(self) -> None:
        self._began: _Reading | None = None
        self._steps, self._lines, self._speed = StepTimes(), LineTimes(), CoreSpeed()

    def start(self) -> None:
        """The profiler records from here on."""
        if wanted("machine"):
            self._began = _read()
            self._steps.start()
            self._speed.start()
            self._speed.look()
            if wanted("lines"):
                self._lines.start()

    def step(self, number: int) -> None:
        """The step of that number has ended, in the thread that called ``start``."""
        if self._began:
            self._steps.end(number)
            self._speed.look()

    def look(self) -> None:
        """See how fast the core is; callable from any thread."""
        self._speed.look()

    def stop(self) -> dict[str, Any] | None:
        """What it did since ``start``; None where that was not called."""
        began, self._began = self._began, None
        if began is None:
            return None
        known = {
            "steps": self._steps.stop(),
            "core_speed": self._speed.stop(),
            "lines": self._lines.stop(),
        }
        return {**_between(began, _read()), **known}


def _between(began: _Reading, ended: _Reading) -> dict[str, Any]:
    usable = getattr(os, "sched_getaffinity", None)
    busy_s = None
    if began.worked_s is not None and ended.worked_s is not None:
        busy_s = round(ended.worked_s - began.worked_s, 2)
    return {
        "cores": os.cpu_count(),
        "usable_cores": len(usable(0)) if usable else None,
        "core_ids": sorted(usable(0))[:_MOST_CORES] if usable else None,
        "processes": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "threads": torch.get_num_threads(),
        "seconds": round(ended.at_s - began.at_s, 4),
        "busy_s": busy_s,
        "own_s": round(ended.own_s - began.own_s, 4),
        "load": [began.load, ended.load],
    }


def _read() -> _Reading:
    return _Reading(
        time.monotonic(), _worked_s(), time.process_time(), round(os.getloadavg()[0], 2)
    )


def _worked_s() -> float | None:
    try:
        first, *_ = Path("/proc/stat").read_text().splitlines()
    except OSError:  # no Linux
        return None
    ticks = [int(word) for word in first.split()[1 : 1 + _GUESTS]]
    return sum(n for column, n in enumerate(ticks) if column not in _IDLE) / os.sysconf(
        "SC_CLK_TCK"
    )
