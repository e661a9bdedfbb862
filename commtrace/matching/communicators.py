"""Which process groups of different ranks are one communicator.

A group's identity is its global ranks: one communicator can carry different names on
different ranks, and one name different rank sets. Where a rank belongs to several groups
of the same ranks, the name distinguishes them if all ranks use it, else the order in which
each rank created them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from commtrace.table import Rows

__all__ = ["communicators"]


def communicators(groups: Rows) -> dict[tuple[int, str | None], str]:
    """(rank, group name) -> the communicator's identity, for every group that has one.

    The identity reads ``0,1,2,3`` or, where several groups share those ranks,
    ``0,1,2,3#name``. A group whose ranks are unknown is ``#name``, unless more ranks use
    the name than it has members: then the name stands for several groups, and for none.
    """
    named: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    unlisted: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in groups.dicts():
        rank, name, size, ranks = (row[column] for column in ("rank", "group", "size", "ranks"))
        if ranks is not None:
            if name not in named[ranks][rank]:
                named[ranks][rank].append(name)
        else:
            unlisted[name].append((rank, size))
    identity: dict[tuple[int, str | None], str] = {}
    for ranks, by_rank in named.items():
        identity |= _identities(ranks, by_rank)
    for name, users in unlisted.items():
        if all(not size < len(users) for _, size in users):
            identity |= {(rank, name): f"#{name}" for rank, _ in users}
    return identity


def _identities(ranks: str, by_rank: dict[int, list[str]]) -> dict[tuple[int, str | None], str]:
    """The groups that share these ranks."""
    if all(len(names) == 1 for names in by_rank.values()):
        return {(rank, names[0]): ranks for rank, names in by_rank.items()}
    common = set.intersection(*map(set, by_rank.values()))
    own = {rank: [n for n in names if n not in common] for rank, names in by_rank.items()}
    # Only where all ranks have as many does the order of creation say which is which.
    countable = len({len(names) for names in own.values()}) == 1
    identity: dict[tuple[int, str | None], str] = {
        (rank, name): f"{ranks}#{name}" for rank in by_rank for name in common
    }
    for rank, names in own.items():
        for place, name in enumerate(names):
            identity[rank, name] = f"{ranks}#{place}" if countable else f"{ranks}#{name}@{rank}"
    return identity
