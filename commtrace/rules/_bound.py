"""Runs that communicate for longer than they compute, however they overlap, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.comms import members
from commtrace.metrics.rank.hosts import hosts
from commtrace.metrics.run.regathers import IN_BACKWARD, regathered
from commtrace.metrics.run.sequences import sequences
from commtrace.metrics.run.waits import matched
from commtrace.quantiles import median
from commtrace.rules._exposed import Devices
from commtrace.rules._less import OF_SHARDS, asked, less, sharded
from commtrace.rules._parameter_gathers import KEPT, ONE_UNIT, is_one_unit
from commtrace.units import percent

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["doing_less", "is_bound"]

_NEARLY_ALL = 0.75  # of the compute
_HYBRID = (
    "shard within hosts and replicate between them (HSDP: a mesh of two dimensions, of which the "
    "second shards), so that gathers stay on the fast links; "
)


def is_bound(found: Devices) -> bool:
    """Whether nearly all compute is beside communication, and as much as half of what is exposed.

    Else it is a program that only communicates, as a benchmark, or one that does not overlap.
    """
    overlapped_ns = found.communication_ns - found.exposed_ns
    nearly_all = _NEARLY_ALL * (found.free_ns + overlapped_ns) <= overlapped_ns
    much = 2 * (found.free_ns + overlapped_ns) >= found.exposed_ns
    return bool(median(nearly_all & much) > 0)


def doing_less(run: Measures, op: str) -> str:
    """How such a run, which has mostly these operations, communicates less."""
    of_shards = op in OF_SHARDS and sharded(run)
    keep = _keeping(run) if of_shards else ""
    hybrid = _HYBRID if of_shards and _shards_across_hosts(run, op) else ""
    one_unit = f"{ONE_UNIT}; " if of_shards and is_one_unit(run) else ""
    return f"{asked(run, op)}{one_unit}{keep}{hybrid}{less(run, op)}"


def _keeping(run: Measures) -> str:
    """What is left out if parameters are kept that are gathered for forward and for backward.

    Their bytes: where gathers and reductions share links no replay knows the time.
    """
    rows = sequences(run)
    size = rows.ints("size_bytes")
    again = int(size[regathered(rows, IN_BACKWARD)].sum())
    if not again:
        return ""
    return (
        f"keep parameters from forward to backward where memory allows ({KEPT}): "
        f"{percent(again, int(size.sum()))} of the bytes; "
    )


def _shards_across_hosts(run: Measures, op: str) -> bool:
    """Whether a group of it spans hosts that have several of its ranks."""
    its, on = matched(run).operations, hosts(run)
    groups = its.coded("communicator").take(its.coded("op").being(op)).occurring()
    for ranks in (members(group) for group in groups):
        names = [on.get(rank) for rank in ranks or ()]
        if None not in names and 1 < len(set(names)) < len(names):
            return True
    return False
