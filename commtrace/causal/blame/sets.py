"""Sets of ranks that may be late together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from commtrace.metrics.rank.hosts import ranks_of_hosts
from commtrace.metrics.run.stages import stages

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["known_sets", "sizes"]

_FEW = 8  # ranks
_GROWS = 1.5


def sizes(most: int) -> Iterator[int]:
    """2, 3, 4, … and then ever more at once, with the most."""
    size = 2
    while size < most:
        yield size
        size = size + 1 if size < _FEW else int(size * _GROWS)
    if most > 1:
        yield most


def known_sets(run: Measures, left: list[int]) -> Iterator[tuple[int, ...]]:
    """The ranks of a host, a group or a pipeline's stage, that are no more than half of these."""
    every = set(left)
    groups = run.rows("groups").coded("ranks").occurring()
    of_groups = ([int(rank) for rank in text.split(",")] for text in groups)
    for ranks in (*ranks_of_hosts(run).values(), *of_groups, *stages(run)):
        if 1 < len(ranks) <= len(left) / 2 and every.issuperset(ranks):
            yield tuple(sorted(ranks))
