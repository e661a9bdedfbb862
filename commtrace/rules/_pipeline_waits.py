"""How long the stages of a pipeline wait for their messages, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from commtrace.arrays import Int64, grouped, ranges
from commtrace.causal.blame.awaited import Waits, works_by_turns
from commtrace.causal.blame.culprit import Culprit
from commtrace.causal.blame.culprits import culprits
from commtrace.causal.run.run_graph import run_graph
from commtrace.expect import nccl_latency_ns
from commtrace.intervals import subtract, total, union
from commtrace.metrics.rank.activity import Device, device_activity
from commtrace.metrics.rank.rows_of import places_of_rank, rows_of_rank
from commtrace.metrics.run.group_dimensions import dimensions_of
from commtrace.metrics.run.run_clock import intervals_on_run
from commtrace.metrics.run.waits import matched
from commtrace.quantiles import quantile
from commtrace.table import Rows

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "calls_of",
    "drains_of",
    "fixed_ns",
    "for_culprits_ns",
    "idle_ns",
    "may_be_a_bubble",
    "step_messages",
]


_SHORTEST = 0.05  # of the kernels
_FIXED_NS = 3_000.0


class LastMessages(Struct, frozen=True, eq=False):
    """Where each rank's step has its last message: when it is called for, and the call behind it.

    ``sent_ns`` are by the graph's ``in_step``, ``behind`` are its calls.
    """

    sent_ns: Int64
    behind: Int64


def step_messages(run: Measures) -> LastMessages:
    calls = run_graph(run).calls
    last = np.full(int(calls.in_step.max()) + 1, -2)
    sent = np.flatnonzero(calls.is_p2p)
    np.maximum.at(last, calls.in_step[sent], sent)
    behind = np.flatnonzero(np.arange(calls.rank.size) == last[calls.in_step] + 1)
    sent_ns = np.zeros(last.size, np.int64)
    sent_ns[last >= 0] = calls.packed["launch_ns"].values(last[last >= 0])
    return LastMessages(sent_ns, behind)


def calls_of(run: Measures, chain: list[int]) -> Int64:
    """These ranks' messages, as calls of the graph, which has one rank's behind another's."""
    calls = run_graph(run).calls
    ranks = np.array(chain, calls.rank.dtype)  # of another all of those would be converted
    first, last = (np.searchsorted(calls.rank, ranks, side=side) for side in ("left", "right"))
    mine = ranges(first, last - first)
    return mine[calls.is_p2p[mine]]


def drains_of(run: Measures, chain: list[int], behind: Int64) -> Int64:
    """The calls of the stages in which the first wait until the pipeline has drained.

    Those right behind the last message of a step, if they are of several stages: as where the
    gradients' norm is summed up.
    """
    calls = run_graph(run).calls
    mine = behind[np.isin(calls.rank[behind], chain)]
    _, operation, stages = np.unique(calls.operation[mine], return_inverse=True, return_counts=True)
    return mine[stages[operation] > 1]


def idle_ns(run: Measures, rows: Rows, rank: int, drains: Int64) -> int:
    """How long a stage waited for messages, and behind them, and computed nothing.

    A recv that is posted early waits beside compute: that is no bubble.
    """
    mine = rows.take(rows.ints("rank") == rank)
    arrival, calls = mine.ints("arrival_ns"), run_graph(run).calls
    its = calls.taken(drains[calls.rank[drains] == rank])
    waits = union(
        np.append(arrival, its.start_ns),
        np.append(arrival + mine.ints("wait_ns"), its.last_ns),
    )
    for device in mine.coded("device").occurring():
        done = device_activity(run).get(Device(rank, device))
        if done is not None and done.compute is not None:
            waits = subtract(waits, intervals_on_run(run, rank, done.compute))
    return total(waits)


def for_culprits_ns(
    run: Measures, chain: list[int], drains: Int64, sent_ns: Int64, min_step_share: float
) -> int:
    """What late ranks among these, or that these wait for between or behind messages, cost.

    That is no bubble, unless they are doubted, and it may be one.
    """
    every = culprits(run, min_step_share).found
    found = [one for one in every if one.doubt is None or not may_be_a_bubble(run, one)]
    return sum(
        max(one.on_top_ns, 0)
        for one in found
        if {*one.ranks} <= {*chain}
        or np.isin(one.waits.call, drains).any()
        or _between_messages(run, one.waits, chain, sent_ns)
    )


def may_be_a_bubble(run: Measures, culprit: Culprit) -> bool:
    """Whether it does nothing there more than others, or has its part in turn with them."""
    return culprit.cause is None or works_by_turns(run, culprit.ranks)


def _between_messages(run: Measures, waits: Waits, chain: list[int], sent_ns: Int64) -> bool:
    """Whether these ranks wait so mostly before the last message of a step: then it is passed on.

    As where tensor parallelism's operations are between a pipeline's messages.
    """
    calls = run_graph(run).calls
    mine = waits.call[np.isin(calls.rank[waits.call], chain) & ~calls.is_p2p[waits.call]]
    its = calls.taken(mine)
    between = its.launch_ns < sent_ns[calls.in_step[mine]]
    waited_ns = its.last_ns - its.start_ns
    return bool(2 * waited_ns[between].sum() > waited_ns.sum())


def fixed_ns(run: Measures, ranks: list[int]) -> float:
    """What a stage's work takes however small its micro-batches are, in the mean of these ranks.

    Each kernel, or operator of a CPU, as long as the shortest twentieth of them, 3 µs at most; each
    sum of tensor parallelism NCCL's latency.
    """
    return float(np.mean([_of_kernels(run, rank) + _of_layers(run, rank) for rank in ranks]))


def _of_kernels(run: Measures, rank: int) -> float:
    kernels, ops = (rows_of_rank(run, table, rank) for table in ("kernels", "ops"))
    its = kernels if len(kernels) else ops
    each = its.ints("duration_ns")[its.coded("kind").being("compute")]
    return each.size * min(quantile(each, _SHORTEST), _FIXED_NS) if each.size else 0.0


def _of_layers(run: Measures, rank: int) -> float:
    calls = rows_of_rank(run, "collectives", rank)
    places = places_of_rank(run, "collectives", rank)
    groups = matched(run).matches.some(places).coded("communicator")
    sums = dimensions_of(run, groups).being("tp") & ~calls.coded("device").being("cpu")
    calls = calls.take(sums & calls.coded("op").known & (calls.ints("group_size") > 1))
    op, ranks = calls.coded("op"), calls.ints("group_size")
    return sum(
        alike.size * nccl_latency_ns(str(op.at(alike[0])), int(ranks[alike[0]]))
        for alike in grouped(op, ranks)
    )
