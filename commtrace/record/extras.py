"""What a recording carries besides the profiler's events, as the diagnosis asks for it."""

from __future__ import annotations

from typing import Any

import torch

from commtrace.record import labels
from commtrace.record.machine import Machine
from commtrace.record.without import NAMES, wanted

__all__ = ["Extras", "new_profiler"]

_SYNC = {"enable_cuda_sync_events": True}


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
        self._machine = Machine()
        self._collections, self._waits = labels.Collections(), labels.Waits(self._machine.look)
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
        if not wanted("machine"):
            absent.add("lines")  # which are part of it
        carried = [name for name in NAMES if wanted(name) and name not in absent]
        return {"carries": carried, "machine": self.machine}

    def start(self) -> None:
        """The profiler records from here on."""
        self._machine.start()
        if wanted("garbage-collection"):
            self._collections.label()
        if labels.are_checkpoints_labelled():
            labels.label_collected_states()
        if wanted("wait"):
            self._waits.label()

    def step(self, number: int) -> None:
        """The step of that number has ended, in the thread that called ``start``."""
        self._machine.step(number)

    def stop(self) -> None:
        """The profiler records no more."""
        self._collections.ignore()
        self._waits.ignore()
        self.machine = self._machine.stop() or self.machine
