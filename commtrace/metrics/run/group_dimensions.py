"""Which dimension of the job's mesh each process group is."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from commtrace.arrays import Int64, codes, first_rows, integers
from commtrace.measures import measure
from commtrace.metrics.rank.phases import phases
from commtrace.metrics.run.group_names import named_dimension
from commtrace.metrics.run.group_traffic import by_traffic
from commtrace.metrics.run.waits import OPERATIONS, matched
from commtrace.table import Column, Rows, Table
from commtrace.units import numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "DIMENSION",
    "GROUP_DIMENSIONS",
    "dimension_of",
    "dimensions_of",
    "group_dimensions",
    "spoken",
]

DIMENSION = (
    Column(
        "dimension",
        "category",
        "The dimension of the job's mesh: by the mesh's own name, else `dp`, `tp`, `pp`, `ep` or "
        "`cp`; null where it is unknown.",
    ),
    Column(
        "dimension_provenance",
        "category",
        "`named` by the program, or `inferred` from ranks and traffic; null without dimension.",
    ),
)
GROUP_DIMENSIONS = Table(
    "group_dimensions",
    "one process group that communicated",
    (*OPERATIONS.only(("communicator",)), *DIMENSION),
)

_Family = tuple[Any, ...]


class _Known(NamedTuple):
    """A process group as a rank knows it."""

    communicator: str
    description: str | None
    group: str


@measure
def group_dimensions(run: Measures) -> Rows:
    """Each process group's dimension, as GROUP_DIMENSIONS.

    A name that the program gave is never contradicted. Groups without one are taken together
    with their siblings, whose ranks are as far from each other, and distinguished by their traffic:
    see ``group_traffic``. Groups that cannot be a dimension of a mesh of all ranks are none,
    nor are those that reduce gradients within a pipeline: they tie weights of two stages.
    """
    column = matched(run).matches["communicator"].cat
    groups = [str(name) for name in column.categories]
    known = _known(run)
    named = _named(known)
    inferred = _untied(_inferred(run, integers(column.codes), known, named), named)
    known_as: dict[str, tuple[str | None, str | None]] = {
        **{group: (name, "inferred") for group, name in inferred.items()},
        **{group: (name or None, "named" if name else None) for group, name in named.items()},
    }
    return GROUP_DIMENSIONS.of_dicts(
        [
            {
                "communicator": group,
                "dimension": known_as.get(group, (None, None))[0],
                "dimension_provenance": known_as.get(group, (None, None))[1],
            }
            for group in groups
        ]
    )


def spoken(run: Measures, communicator: str) -> str:
    """A process group as people speak of it: ``tp (ranks 0–1)``, else ``ranks 0–1``."""
    table = group_dimensions(run)
    dimension = table.loc[table["communicator"] == communicator, "dimension"].dropna()
    ranks = {int(rank) for rank in filter(None, _ranks(communicator).split(","))}
    who = numbered("rank", ranks) if ranks else f"group {communicator.removeprefix('#')}"
    return f"{dimension.iloc[0]} ({who})" if len(dimension) else who


def dimension_of(run: Measures, row: int) -> str | None:
    """The dimension of the process group that a row of ``collectives`` is of; None if unknown."""
    communicator = matched(run).matches["communicator"].iloc[row]
    table = group_dimensions(run)
    dimension = table.loc[table["communicator"] == communicator, "dimension"].dropna()
    return str(dimension.iloc[0]) if len(dimension) else None


def dimensions_of(run: Measures, communicators: pd.Series[Any]) -> pd.Series[Any]:
    """The dimension of each of these process groups, as an object; null where it is unknown."""
    known = group_dimensions(run).set_index("communicator")["dimension"].astype(object)
    return communicators.astype(object).map(known)


def _known(run: Measures) -> list[_Known]:
    """The rows of ``groups`` that communicated."""
    rank, group = integers(run.collective_columns["rank"]), run.collective_columns["group"].cat
    communicator = matched(run).matches["communicator"].cat
    pair = group.codes.to_numpy() * (len(communicator.categories) + 1) + communicator.codes
    first = first_rows(codes(rank, pair))
    used: dict[tuple[int, str], list[str]] = defaultdict(list)
    known = (rank, group.codes.to_numpy(), communicator.codes.to_numpy())
    for one, its, which in zip(*(column[first].tolist() for column in known), strict=True):
        if its >= 0 and which >= 0:
            used[one, group.categories[its]].append(communicator.categories[which])
    names = ["rank", "group", "description"]
    return [
        _Known(which, description, name)
        for one, name, description in zip(*(_listed(run.groups[c]) for c in names), strict=True)
        for which in used.get((one, name), ())
    ]


def _listed(column: pd.Series[Any]) -> list[Any]:
    return column.astype(object).tolist()


def _named(known: list[_Known]) -> dict[str, str]:
    """The dimension of each group that the program named; empty if it is none."""
    found: dict[str, str] = {}
    for communicator, *names in dict.fromkeys(known):
        dimensions = (named_dimension(name) for name in names if isinstance(name, str))
        name = next((name for name in dimensions if name is not None), None)
        if name is not None:
            found[communicator] = name
    return found


def _inferred(
    run: Measures, group: Int64, known: list[_Known], named: dict[str, str]
) -> dict[str, str]:
    """The dimension of each group without a name, as siblings' names or their traffic tell."""
    column = matched(run).matches["communicator"].cat
    number = {str(name): code for code, name in enumerate(column.categories)}
    families: dict[_Family, list[str]] = defaultdict(list)
    for communicator, family in _families(run, known).items():
        families[family].append(communicator)
    found: dict[str, str] = {}
    asked: list[list[str]] = []
    for siblings in families.values():
        unnamed = [sibling for sibling in siblings if sibling not in named]
        names = [named[sibling] for sibling in siblings if named.get(sibling)]
        if names:
            found |= dict.fromkeys(unnamed, names[0])
        elif len(unnamed) == len(siblings):
            asked.append(siblings)
    of_group: Int64 = np.full(len(number) + 1, -1, np.int64)  # the last is of rows without one
    for family_number, siblings in enumerate(asked):
        of_group[[number[sibling] for sibling in siblings]] = family_number
    of_family = by_traffic(run, of_group[group])
    dimensions = set(of_family.values())
    exchanges = dimensions in ({"ep"}, {"cp"})
    reduces = len(families) == 1 and dimensions <= {"dp", "tp"}
    if not named and not found and (exchanges or (reduces and not _trains(run))):
        return {}  # a benchmark communicates as training does; training has gradients
    for family_number, name in of_family.items():
        found |= dict.fromkeys(asked[family_number], name)
    return found


def _trains(run: Measures) -> bool:
    """Whether some communication is known to be of a backward pass or an optimizer."""
    return not {"backward", "optimizer"}.isdisjoint(phases(run))


def _families(run: Measures, known: list[_Known]) -> dict[str, _Family]:
    """What sibling groups share: how far their ranks are from the first.

    Groups of the same ranks are of as many families, in the order in which they were made.
    """
    worlds = run.ranks["world_size"].dropna()
    world = int(worlds.max()) if len(worlds) else 0
    found: dict[str, _Family] = {}
    made: Counter[str] = Counter()
    for communicator in dict.fromkeys(its.communicator for its in known):
        listed = _ranks(communicator)
        made[listed] += 1
        ranks = [int(rank) for rank in listed.split(",")] if listed else []
        if _in_mesh(ranks, world):
            found[communicator] = (made[listed], *(rank - ranks[0] for rank in ranks))
    return found


def _in_mesh(ranks: list[int], world: int) -> bool:
    """Whether some dimensions of a mesh of all ranks can be these ranks."""
    least = 1
    while len(ranks) > 1:
        stride = ranks[1] - ranks[0]
        steps = [later - rank for rank, later in pairwise(ranks)]
        count = next((n for n, step in enumerate(steps, 1) if step != stride), len(ranks))
        heads = ranks[::count]
        whole = [head + stride * n for head in heads for n in range(count)]
        if stride % least or ranks != whole:
            return False
        least, ranks = stride * count, heads
    return least > 1 and world % least == 0


def _ranks(communicator: str) -> str:
    return communicator.partition("#")[0]


def _untied(inferred: dict[str, str], named: dict[str, str]) -> dict[str, str]:
    """Without the dp that are within a pipeline."""
    pipelines = [_ranks(group) for group, name in {**inferred, **named}.items() if name == "pp"]
    stages: dict[str, set[str]] = {}
    for listed in pipelines:
        ranks = set(listed.split(","))
        stages |= dict.fromkeys(ranks, ranks)

    def tied(group: str) -> bool:
        first, *others = _ranks(group).split(",")
        return {first, *others} <= stages.get(first, set())

    return {group: name for group, name in inferred.items() if name != "dp" or not tied(group)}
