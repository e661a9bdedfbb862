"""Ranges in a trace for what stalls a program beside its operators.

Their names are a promise to whoever reads traces.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function

from commtrace.comms import WAIT

__all__ = [
    "CHECKPOINT",
    "COLLECTION",
    "Collections",
    "Waits",
    "are_checkpoints_labelled",
    "collect",
    "label_checkpoints",
    "label_collected_states",
]

CHECKPOINT = "commtrace::checkpoint"
COLLECTION = "commtrace::garbage-collection"


class Collections:
    """Labels Python's garbage collections, but for those of the youngest generation.

    Those come after some hundred new objects each, and take less than a label may cost.
    """

    def __init__(self) -> None:
        self._range: record_function | None = None

    def label(self) -> None:
        """From here on."""
        gc.callbacks.append(self._collecting)

    def ignore(self) -> None:
        """No more."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._collecting)

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        # This may run within anything, so that nothing else may take part: no mode, no tracer.
        if phase == "start":
            if info["generation"] and torch._C._get_tracing_state() is None:
                self._range = record_function(COLLECTION)
                with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
                    self._range.__enter__()
        elif self._range is not None:
            with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
                self._range.__exit__(None, None, None)
            self._range = None


def collect() -> None:
    """Collect what imports and setting up have left, which would be once in a short window.

    Python collects all generations only when a quarter as much has come as there was, so that the
    next ones are the program's own doing. Not where the program collects by itself.
    """
    if gc.isenabled():
        gc.collect()


class Waits:
    """Labels where the program waits for an operation, its own calls of ``Work.wait``.

    A synchronous call waits by one, too. On CPUs only: for a GPU's no host waits. ``behind`` is
    called whenever it has waited.
    """

    def __init__(self, behind: Callable[[], object]) -> None:
        self._before: Callable[..., Any] | None = None
        self._behind = behind

    def label(self) -> None:
        """From here on."""
        if dist.is_available() and not torch.cuda.is_available():
            self._before = dist.Work.wait
            dist.Work.wait = _waiting(dist.Work.wait, self._behind)

    def ignore(self) -> None:
        """No more."""
        if self._before is not None:
            dist.Work.wait, self._before = self._before, None


def _waiting(wait: Callable[..., Any], behind: Callable[[], object]) -> Callable[..., Any]:
    @functools.wraps(wait)
    def labelled(*arguments: Any, **more: Any) -> Any:
        with record_function(WAIT):
            done = wait(*arguments, **more)
        behind()
        return done

    return labelled


with contextlib.suppress(AttributeError):  # nor torch.compile
    torch._C._dynamo.eval_frame.skip_code(Collections._collecting.__code__)

with record_function(COLLECTION):  # what it imports at first it imports here, and not there
    pass


def label_checkpoints() -> None:
    """Label what saves: ``torch.save``, torch.distributed.checkpoint's functions, safetensors."""
    torch.save = torch.serialization.save = _labelled(torch.save)
    with contextlib.suppress(ImportError):
        tensors: Any = import_module("safetensors.torch")  # now: programs import the function
        tensors.save_file = _labelled(tensors.save_file)
    if not dist.is_available():
        return
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import state_dict_saver

    for name in ("save", "async_save"):
        if call := getattr(checkpoint, name, None):
            labelled = _labelled(call)
            setattr(checkpoint, name, labelled)
            setattr(state_dict_saver, name, labelled)


def label_collected_states() -> None:
    """Label as saved what a ZeroRedundancyOptimizer collects to be, if the program has one."""
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    its: Any = getattr(module, "ZeroRedundancyOptimizer", None)
    if its is not None and not hasattr(its.consolidate_state_dict, "__wrapped__"):
        its.consolidate_state_dict = _labelled(its.consolidate_state_dict)


def are_checkpoints_labelled() -> bool:
    """Whether what saves is labelled in this process."""
    return hasattr(torch.save, "__wrapped__")


_saving = threading.local()


def _labelled(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def labelled(*arguments: Any, **more: Any) -> Any:
        pickled = bool(arguments) and torch.is_storage(arguments[0])  # a tensor, as to send it
        if pickled or getattr(_saving, "now", False):  # one saves by another
            return call(*arguments, **more)
        _saving.now = True
        try:
            with record_function(CHECKPOINT):
                return call(*arguments, **more)
        finally:
            _saving.now = False

    return labelled
