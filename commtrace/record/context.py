"""What a workload knows about where it runs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch

from commtrace.errors import UsageError

__all__ = ["Context"]


@dataclass(frozen=True)
class Context:
    """One rank of a recording, as ``setup`` gets it. ``device`` is where its tensors belong."""

    rank: int
    local_rank: int
    world_size: int
    backend: Literal["gloo", "nccl"]
    device: torch.device

    def label(self, name: str) -> AbstractContextManager[object]:
        """Name a range in the trace: ``with ctx.label("forward"): …``."""
        return torch.profiler.record_function(name)  # type: ignore[no-any-return]

    def require(self, condition: bool, message: str) -> None:
        """End the recording with one line unless the machine or the settings allow it.

        Raises UsageError.
        """
        if not condition:
            raise UsageError(message)
