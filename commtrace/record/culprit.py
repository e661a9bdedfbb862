"""Says in one line which rank failed, and in which operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Failure", "hang", "phrase", "whereabouts"]

_MOST = 3  # other ranks to name

_Operation = Mapping[str, Any] | None


@dataclass(frozen=True)
class Failure:
    """The rank that failed first, and what it said or how it died, in Unix time.

    ``died``: it could say nothing more. ``hung``: it waits, so that waiting for it is vain.
    """

    rank: int
    message: str
    time_ns: int = 0
    usage: bool = False
    died: bool = False
    hung: bool = False

    @property
    def order(self) -> tuple[bool, int]:
        """Who is blamed, least first: others can only have noticed a death, perhaps earlier."""
        return not self.died, self.time_ns


def phrase(operation: Mapping[str, Any]) -> str:
    """An operation as text.

    >>> phrase({"name": "all_reduce", "number": 3, "group": "0"})
    'all_reduce (number 3 in group 0)'
    """
    line = f", called at {operation['called_at']}" if operation.get("called_at") else ""
    where = f"number {operation['number']} in group {operation['group']}{line}"
    return f"{operation['name']} ({where})"


def whereabouts(rank: int, operation: _Operation) -> str:
    """Where a rank is.

    >>> whereabouts(1, {"name": "barrier", "number": 1, "group": "0", "done": True})
    'rank 1 last called barrier (number 1 in group 0)'
    """
    if not operation:
        return f"rank {rank} is in no operation"
    verb = "last called" if operation["done"] else "was in"
    return f"rank {rank} {verb} {phrase(operation)}"


def hang(operation: Mapping[str, Any], waited_s: float, states: Mapping[int, _Operation]) -> str:
    """Why one rank waits in vain: where the others of its group are, as far as they answer."""
    others = {
        r: at for r, at in states.items() if not operation["ranks"] or r in operation["ranks"]
    }
    elsewhere = [r for r, at in others.items() if not _same(at, operation)]
    stuck = [whereabouts(rank, others[rank]) for rank in elsewhere[:_MOST]]
    if len(elsewhere) > _MOST:
        stuck.append(f"{len(elsewhere) - _MOST} more never came")
    return "; ".join([f"has waited {waited_s:.0f} s in {phrase(operation)}", *stuck])


def _same(at: _Operation, operation: Mapping[str, Any]) -> bool:
    keys = ("name", "number", "group")
    return at is not None and all(at[key] == operation[key] for key in keys)
