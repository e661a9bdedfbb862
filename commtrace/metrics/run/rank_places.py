"""Where each rank is: its host, and its coordinate along each dimension of the job's mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Int64, distinct
from commtrace.comms import members
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.group_dimensions import group_dimensions
from commtrace.table import Coded
from commtrace.units import numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Axis", "common_place", "rank_axes"]

_LISTED = 8  # places: more are nothing that ranks have in common


class Axis(Struct, frozen=True, eq=False):
    """Of each rank the number of its place along one axis, -1 where unknown.

    ``names`` are those of hosts; without them the number is a coordinate.
    """

    name: str
    place: Int64
    names: tuple[str, ...] = ()

    def named(self, places: Sequence[int]) -> str:
        """Some of the places, as people speak of them."""
        if not self.names:
            return f"{self.name} {numbered('', places).partition(' ')[2]}"
        names = ", ".join(self.names[place] for place in places)
        return f"{self.name}{'s' * (len(places) > 1)} {names}"


def rank_axes(run: Measures, ranks: Int64) -> list[Axis]:
    """The axes along which these ranks are in several places, with several ranks in some."""
    every = [_hosts(run, ranks), *_coordinates(run, ranks)]
    return [its for its in every if 1 < distinct(its.place).size < ranks.size]


def common_place(axes: Sequence[Axis], group: Int64) -> str | None:
    """What tells a group of ranks from all others; else all that its ranks have in common.

    The shortest there is, as ``pp 2`` and not ``hosts e, f``. None if they have nothing.
    """
    known = [its for its in axes if (its.place[group] >= 0).all()]
    found = {its: distinct(its.place[group]) for its in known}
    whole = [
        its
        for its, at in found.items()
        if at.size <= _LISTED and np.isin(its.place, at).sum() == group.size
    ]
    fewest = min((found[its].size for its in whole), default=1)
    shown = [its for its in whole or known if found[its].size == fewest]
    return ", ".join(its.named(found[its].tolist()) for its in shown) or None


def _hosts(run: Measures, ranks: Int64) -> Axis:
    on = hosts(run)
    its = Coded.of([on.get(rank) for rank in ranks.tolist()]).ordered()
    return Axis("host", its.codes.astype(np.int64), its.names)


def _coordinates(run: Measures, ranks: Int64) -> list[Axis]:
    """Along each dimension; of a rank in several of its groups the place in the largest."""
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for row in group_dimensions(run).dicts():
        if row["dimension"] is None:
            continue
        listed = members(row["communicator"])
        along = found.setdefault(row["dimension"], {})
        for place, rank in enumerate(listed):
            size, _ = along.get(rank, (0, 0))
            if len(listed) > size:
                along[rank] = len(listed), place
    nowhere = 0, -1
    return [
        Axis(name, np.asarray([along.get(rank, nowhere)[1] for rank in ranks.tolist()]))
        for name, along in sorted(found.items())
    ]
