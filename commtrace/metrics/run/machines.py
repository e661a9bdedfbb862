"""What each rank's process saw of its machine while it was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["machines"]


def machines(run: Measures) -> dict[int, dict[str, Any]]:
    """As the manifest has it, by rank; none without one."""
    ranks = (run.manifest or {}).get("ranks")
    rows = [one for one in ranks if isinstance(one, dict)] if isinstance(ranks, list) else []
    each = [(one.get("rank"), one.get("machine")) for one in rows]
    return {
        rank: machine
        for rank, machine in each
        if isinstance(rank, int) and isinstance(machine, dict)
    }
