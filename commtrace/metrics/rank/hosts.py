"""On which host each rank is."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from commtrace.measures import measure

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["hosts", "on_hosts_of_their_own", "one_host", "ranks_of_hosts"]


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


def on_hosts_of_their_own(run: Measures, ranks: Collection[int]) -> bool:
    """Whether no other rank is on these ranks' hosts, as far as is known; not where one is not."""
    on = hosts(run)
    theirs = {on.get(rank) for rank in ranks}
    return None not in theirs and theirs.isdisjoint(on[rank] for rank in on if rank not in ranks)


def one_host(run: Measures, ranks: Collection[int]) -> str | None:
    """The host that these are all the ranks of, where there are several; else None."""
    on = ranks_of_hosts(run)
    its = (host for host, mine in on.items() if sorted(mine) == sorted(ranks))
    return next(its, None) if len(on) > 1 else None
