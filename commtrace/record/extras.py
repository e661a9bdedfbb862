"""What a recording carries besides the profiler's events, as the diagnosis asks for it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from commtrace.record import labels
from commtrace.record.step_times import StepTimes
from commtrace.record.without import NAMES, wanted

__all__ = ["Extras", "new_profiler"]

_SYNC = {"enable_cuda_sync_events": True}
_IDLE = (3, 4)  # the columns of /proc/stat that are none of work: idle, iowait
_GUESTS = 8  # from here on what is counted before, too


def new_profiler(**options: Any) -> torch.profiler.profile:
    """torch.profiler as every recording has it: with shapes, and a GPU's synchronisations."""
    if _records_synchronisations():
        options["experimental_config"] = torch._C._profiler._ExperimentalConfig(**_SYNC)
    return torch.profiler.profile(record_shapes=True, **options)


def _records_synchronisations() -> bool:
    if not wanted("cuda-sync") or not torch.cuda.is_available():
        return False
    try:
        torch._C._profiler._ExperimentalConfig(**_SYNC)
    except TypeError:  # this torch cannot
        return False
    return True


class Extras:
    """Labels garbage collections and waits from ``start`` to ``stop``.

    And has looked at the machine then.
    """

    def __init__(self) -> None:
        self._collections, self._waits = labels.Collections(), labels.Waits()
        self._began: tuple[float, float | None, float, float] | None = None
        self._steps = StepTimes()
        self.machine: dict[str, Any] | None = None

    def facts(self) -> dict[str, Any]:
        """What goes into the trace: which extras it carries, and what the machine did."""
        absent = set()
        if not labels.are_checkpoints_labelled():
            absent.add("checkpoint")
        if not _records_synchronisations():
            absent.add("cuda-sync")
        if torch.cuda.is_available():
            absent.add("wait")
        carried = [name for name in NAMES if wanted(name) and name not in absent]
        return {"carries": carried, "machine": self.machine}

    def start(self) -> None:
        """The profiler records from here on."""
        if wanted("machine"):
            self._began = _clocks()
            self._steps.start()
        if wanted("garbage-collection"):
            self._collections.label()
        if wanted("wait"):
            self._waits.label()

    def step(self, number: int) -> None:
        """The step of that number has ended, in the thread that called ``start``."""
        if self._began:
            self._steps.end(number)

    def stop(self) -> None:
        """The profiler records no more."""
        self._collections.ignore()
        self._waits.ignore()
        if self._began:
            self.machine = {**_machine(self._began, _clocks()), "steps": self._steps.stop()}
            self._began = None


def _machine(
    began: tuple[float, float | None, float, float], ended: tuple[float, float | None, float, float]
) -> dict[str, Any]:
    usable = getattr(os, "sched_getaffinity", None)
    busy = None if began[1] is None or ended[1] is None else round(ended[1] - began[1], 2)
    return {
        "cores": os.cpu_count(),
        "usable_cores": len(usable(0)) if usable else None,
        "processes": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "threads": torch.get_num_threads(),
        "seconds": round(ended[0] - began[0], 4),
        "busy_s": busy,
        "own_s": round(ended[2] - began[2], 4),
        "load": [began[3], ended[3]],
    }


def _clocks() -> tuple[float, float | None, float, float]:
    """The time, what all processes together have worked until then, what this one has; the load."""
    return time.monotonic(), _worked_s(), time.process_time(), round(os.getloadavg()[0], 2)


def _worked_s() -> float | None:
    try:
        first, *_ = Path("/proc/stat").read_text().splitlines()
    except OSError:  # no Linux
        return None
    ticks = [int(word) for word in first.split()[1 : 1 + _GUESTS]]
    return sum(n for column, n in enumerate(ticks) if column not in _IDLE) / os.sysconf(
        "SC_CLK_TCK"
    )
