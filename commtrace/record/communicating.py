"""Which steps of a program communicate."""

from __future__ import annotations

import torch.distributed as dist

__all__ = ["Communicating"]


class Communicating:
    """How many steps have called for communication, of those that have ended since."""

    def __init__(self) -> None:
        self.steps, self._called = 0, _called()

    def end(self) -> None:
        """A step has ended."""
        called = _called()
        self.steps += called != self._called
        self._called = called


def _called() -> int:
    """How often this rank's groups were called, as these count; 0 of groups that do not."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0
    try:
        groups = dist.distributed_c10d._world.pg_map
        return sum(group._get_sequence_number_for_group() for group in groups)
    except RuntimeError:  # of a backend that does not number what it is called for
        return 0
