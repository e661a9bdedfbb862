"""How busy the cores are that a host's ranks share: where they are, waiting less gains nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import integers
from commtrace.causal.run_graph import run_graph
from commtrace.causal.segments import busy
from commtrace.intervals import covered
from commtrace.measures import measure

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["cores_used"]


@measure
def cores_used(run: Measures) -> float | None:
    """The share of the busiest host's cores that operators and transfers fill, if that is known.

    Only a recording's manifest says how many cores its ranks may use.
    """
    its = run_graph(run)
    begin, end = its.begin_ns, int(its.end_ns.max())
    used: dict[object, float] = {}
    hosts = dict(zip(integers(run.ranks["rank"]).tolist(), run.ranks["host"], strict=True))
    cores = _cores(run)
    for rank in np.unique(its.calls.rank).tolist():
        if rank not in cores:
            return None
        computes = int(covered([begin], [end], busy(run, rank))[0])
        transfers = int(its.transfer_ns[its.calls.rank == rank].sum())
        share = (computes + transfers) / max(cores[rank] * (end - begin), 1)
        used[hosts[rank]] = used.get(hosts[rank], 0.0) + share
    return max(used.values(), default=None)


def _cores(run: Measures) -> dict[int, int]:
    """How many cores each rank may use, with others: as the rank found them, else the CPU's."""
    manifest = run.manifest or {}
    cpu, ranks = manifest.get("cpu"), manifest.get("ranks")
    found: dict[int, int] = {}
    if isinstance(cpu, dict) and run.ranks["host"].nunique() == 1:
        count = cpu.get("count")
        if isinstance(count, int) and count > 0:
            found = dict.fromkeys(integers(run.ranks["rank"]).tolist(), count)
    for one in ranks if isinstance(ranks, list) else ():
        machine = one.get("machine") if isinstance(one, dict) else None
        count = machine.get("usable_cores") if isinstance(machine, dict) else None
        if isinstance(count, int) and count > 0 and isinstance(rank := one.get("rank"), int):
            found[rank] = count
    return found
