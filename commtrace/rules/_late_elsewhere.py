"""Ranks without a trace file that are late, as groups alike tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Float64, Int64, grouped
from commtrace.comms import EVEN, members
from commtrace.metrics.run.bandwidth import on_gpus, served
from commtrace.metrics.run.group_dimensions import kin
from commtrace.metrics.run.missing_ranks import missing_ranks
from commtrace.quantiles import median
from commtrace.table import Coded, Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["LateElsewhere", "late_elsewhere"]

_LEAST = 8  # operations of a kind in each group
_TIMES = 2.0  # as long as in the groups alike
_ALIKE = 1.25  # the same of operations that their links move as fast
_AS_LARGE = 0.25  # of the bytes


class LateElsewhere(Struct, frozen=True, eq=False):
    """One of ``ranks`` is late to ``operations``, each of which takes so much longer for it.

    They are of one ``group`` and kind; in groups alike such take ``usual_ns``.
    """

    ranks: tuple[int, ...]
    group: str
    operations: Rows
    usual_ns: float

    @property
    def beyond_ns(self) -> Float64:
        """What each takes longer."""
        return np.asarray((self.operations.ints("transfer_ns") - self.usual_ns).clip(min=0))


class _Kind(Struct, frozen=True, eq=False):
    """Operations alike of one group, what they usually take there, and in the groups alike."""

    at: Int64
    group: str
    size_bytes: int
    typical_ns: float
    usual_ns: float

    @property
    def ratio(self) -> float:
        return self.typical_ns / self.usual_ns


def late_elsewhere(run: Measures) -> LateElsewhere | None:
    """The ranks of the group that loses most to one of them; None where none is seen to.

    Operations of GPUs take twice as long there as in groups alike once all are there whose files
    are, while others that are as large take as long: it is not their links.
    """
    missing = missing_ranks(run)
    if not missing:
        return None
    known = served(run)
    known = known.take(
        on_gpus(known, run)
        & (known.ints("present") < known.ints("expected"))
        & known.coded("op").where(EVEN.__contains__)
        & known.coded("communicator").known
    )
    kinds = _kinds(run, known)
    found = [
        LateElsewhere(
            tuple(rank for rank in members(kind.group) if rank in missing),
            kind.group,
            known.take(kind.at),
            kind.usual_ns,
        )
        for kind in kinds
        if kind.ratio >= _TIMES and any(_moves_as_fast(kind, other) for other in kinds)
    ]
    return max(found, key=lambda one: float(one.beyond_ns.sum()), default=None)


def _moves_as_fast(kind: _Kind, other: _Kind) -> bool:
    large = other.size_bytes >= _AS_LARGE * kind.size_bytes
    return other.group == kind.group and large and other.ratio <= _ALIKE


def _kinds(run: Measures, known: Rows) -> list[_Kind]:
    """Of each group and kind that groups alike have, too."""
    group, transfer, families = known.coded("communicator"), known.ints("transfer_ns"), kin(run)
    family = Coded.of([families.get(name, name) for name in group.names])
    kind = known.coded("op"), known.coded("dtype"), known.ints("size_bytes")
    found = []
    for alike in grouped(family.codes[group.codes], *kind):
        each = {
            str(group.at(int(alike[at[0]]))): alike[at]
            for at in grouped(group.take(alike))
            if at.size >= _LEAST
        }
        typical = {name: median(transfer[at]) for name, at in each.items()}
        for name, at in each.items():
            others = [its for other, its in typical.items() if other != name]
            if others:
                size = int(known.ints("size_bytes")[at[0]])
                found.append(_Kind(at, name, size, typical[name], median(others)))
    return found
