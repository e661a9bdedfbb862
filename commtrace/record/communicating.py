"""Which steps of a program communicate."""

from __future__ import annotations

import torch
import torch.distributed as dist

__all__ = ["Communicating"]


class Communicating:
    """How many steps have called for communication, of those that have ended since."""

    def __init__(self) -> None:
        self.steps: int | None = 0
        """None where that is unknown."""
        self._called = _called()

    def end(self) -> None:
        """A step has ended."""
        called = _called()
        if called is None or self.steps is None:
            self.steps = None
        else:
            self.steps += called != self._called
        self._called = called


def _called() -> int | None:
    """How often this rank's groups were called; None where nobody counts, or is to be called.

    On GPUs NCCL counts its collectives, and no messages.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    if torch.cuda.is_available():
        return None
    try:
        groups = dist.distributed_c10d._world.pg_map
        return int(sum(group._get_sequence_number_for_group() for group in groups))
    except RuntimeError:  # of a backend that does not number what it is called for
        return None
