"""On which host each rank is."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from commtrace.diagnosis import Note
from commtrace.gpu_numbers import first_ranks
from commtrace.measures import measure
from commtrace.metrics.rank.devices import devices
from commtrace.units import numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["assumed_hosts", "hosts", "on_hosts_of_their_own", "one_host", "ranks_of_hosts"]


@measure
def hosts(run: Measures) -> dict[int, str]:
    """The name of each rank's host, of those whose is known.

    Where no host has a name the numbers of GPUs tell several.
    """
    return _named(run) or _by_gpus(run)


def assumed_hosts(run: Measures) -> tuple[Note, ...]:
    """``assumed-hosts``: which ranks are taken to share a host, where none has a name."""
    if _named(run) or not (on := ranks_of_hosts(run)):
        return ()
    each = "; ".join(f"{host}: {numbered('rank', ranks)}" for host, ranks in on.items())
    message = f"no host has a name: ranks are on hosts as their GPUs' numbers say ({each})"
    return (Note("assumed-hosts", message),)


def _named(run: Measures) -> dict[int, str]:
    its = run.rows("ranks")
    each = zip(its.ints("rank").tolist(), its.coded("host").decoded(), strict=True)
    return {rank: host for rank, host in each if host is not None}


def _by_gpus(run: Measures) -> dict[int, str]:
    """Numbers for hosts, of which GPUs show several; of ranks whose GPU is known for all."""
    its = devices(run)
    names = map(str, its.coded("device").decoded())
    first = first_ranks(zip(its.ints("rank").tolist(), names, strict=True))
    on = sorted(set(first.values()))
    if len(first) < len(run.rows("ranks")) or not 1 < len(on) < len(first):
        return {}
    return {rank: f"#{on.index(its)}" for rank, its in sorted(first.items())}


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
