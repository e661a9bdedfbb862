"""On which host each rank is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.measures import measure

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["hosts", "ranks_of_hosts"]


@measure
def hosts(run: Measures) -> dict[int, str]:
    """The name of each rank's host, of those whose is known."""
    its = run.rows("ranks")
    each = zip(its.ints("rank").tolist(), its.coded("host").decoded(), strict=True)
    return {rank: host for rank, host in each if host is not None}


def ranks_of_hosts(run: Measures) -> dict[str, list[int]]:
    """The ranks on each host."""
    found: dict[str, list[int]] = {}
    for rank, host in hosts(run).items():
        found.setdefault(host, []).append(rank)
    return found
