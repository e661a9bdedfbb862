"""Which dimension of the job's mesh each process group is."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from commtrace.arrays import Bool, Int64, codes, first_rows
from commtrace.measures import measure
from commtrace.metrics.rank.phases import phases
from commtrace.metrics.run.group_names import named_dimension
from commtrace.metrics.run.group_traffic import by_traffic
from commtrace.metrics.run.waits import OPERATIONS, matched
from commtrace.table import Coded, Column, Rows, Table
from commtrace.units import numbered

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "DIMENSION",
    "GROUP_DIMENSIONS",
    "between_layers",
    "dimension_of",
    "dimensions_of",
    "group_dimensions",
    "kin",
    "spoken",
]

_OF_LAYERS = frozenset(("tp", "ep", "pp", "cp"))
"""The dimensions in which layers communicate, and no gradients are reduced."""
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
    group: str | None


@measure
def group_dimensions(run: Measures) -> Rows:
    """Each process group's dimension, as GROUP_DIMENSIONS.

    A name that the program gave is never contradicted. Groups without one are taken together
    with their siblings, whose ranks are as far from each other, and distinguished by their traffic:
    see ``group_traffic``. Groups that cannot be a dimension of a mesh of all ranks are none,
    nor are those that reduce gradients within a pipeline: they tie weights of two stages.
    """
    communicator = matched(run).matches.coded("communicator")
    known = _known(run)
    named = _named(known)
    inferred = _untied(_inferred(run, communicator, known, named), named)
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
            for group in communicator.names
        ]
    )


def spoken(run: Measures, communicator: str) -> str:
    """A process group as people speak of it: ``tp (ranks 0–1)``, else ``ranks 0–1``."""
    dimension = _by_group(run).get(communicator)
    ranks = {int(rank) for rank in filter(None, _ranks(communicator).split(","))}
    who = numbered("rank", ranks) if ranks else f"group {communicator.removeprefix('#')}"
    return f"{dimension} ({who})" if dimension else who


def dimension_of(run: Measures, row: int) -> str | None:
    """The dimension of the process group that a row of ``collectives`` is of; None if unknown."""
    return dimensions_of(
        run, matched(run).matches.coded("communicator").take(slice(row, row + 1))
    ).at(0)


def dimensions_of(run: Measures, communicators: Coded) -> Coded:
    """The dimension of each of these process groups; null where it is unknown."""
    known = _by_group(run)
    dimension = Coded.of([*(known.get(name) for name in communicators.names), None])
    return Coded(dimension.codes[communicators.codes], dimension.names)


def between_layers(run: Measures, communicators: Coded) -> Bool:
    """Which of these groups are of a dimension in which layers communicate, as far as known."""
    return dimensions_of(run, communicators).where(_OF_LAYERS.__contains__)


@measure
def kin(run: Measures) -> dict[str | None, str]:
    """What each process group has in common with its siblings.

    The dimension, else how far apart ranks are in groups that fit a mesh, else its identity.
    """
    known, families = _by_group(run), _families(run, _known(run))
    return {
        name: dimension or str(families.get(name or "", name)) for name, dimension in known.items()
    }


@measure
def _by_group(run: Measures) -> dict[str | None, str | None]:
    table = group_dimensions(run)
    columns = (table.coded(name).decoded() for name in ("communicator", "dimension"))
    return dict(zip(*columns, strict=True))


def _known(run: Measures) -> list[_Known]:
    """The rows of ``groups`` that communicated."""
    called, groups = run.rows("collectives"), run.rows("groups")
    columns = called.coded("group"), matched(run).matches.coded("communicator")
    first = first_rows(codes(called.ints("rank"), *columns))
    group, communicator = (column.take(first).decoded() for column in columns)
    used: dict[tuple[int, str | None], list[str]] = defaultdict(list)
    for rank, name, which in zip(
        called.ints("rank")[first].tolist(), group, communicator, strict=True
    ):
        if name is not None and which is not None:
            used[rank, name].append(which)
    names = (groups.coded(column).decoded() for column in ("group", "description"))
    return [
        _Known(which, description, name)
        for rank, name, description in zip(groups.ints("rank").tolist(), *names, strict=True)
        for which in used.get((rank, name), ())
    ]


def _named(known: list[_Known]) -> dict[str, str]:
    """The dimension of each group that the program named; empty if it is none."""
    found: dict[str, str] = {}
    for communicator, *names in dict.fromkeys(known):
        dimensions = (named_dimension(name) for name in names if name is not None)
        name = next((name for name in dimensions if name is not None), None)
        if name is not None:
            found[communicator] = name
    return found


def _inferred(
    run: Measures, communicator: Coded, known: list[_Known], named: dict[str, str]
) -> dict[str, str]:
    """The dimension of each group without a name, as siblings' names or their traffic tell."""
    number = {name: code for code, name in enumerate(communicator.names)}
    families: dict[_Family, list[str]] = defaultdict(list)
    for name, family in _families(run, known).items():
        families[family].append(name)
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
    of_family = by_traffic(run, of_group[communicator.codes])
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
    return not {"backward", "optimizer"}.isdisjoint(phases(run).occurring())


def _families(run: Measures, known: list[_Known]) -> dict[str, _Family]:
    """What sibling groups share: how far their ranks are from the first.

    Groups of the same ranks are of as many families, in the order in which they were made.
    """
    world = int(run.rows("ranks").ints("world_size").max(initial=0))
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
