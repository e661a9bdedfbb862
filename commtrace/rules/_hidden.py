"""What is saved if compute hides communication that is exposed: the run replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Bool, codes, in_order
from commtrace.causal.edits.own_pace import at_own_pace
from commtrace.causal.edits.run_edits import (
    as_measured,
    needing_nobody,
    saved_by,
    without_waits,
)
from commtrace.causal.edits.wait_edits import called_earlier
from commtrace.causal.replay.graph import Lags, changes
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import mended_lags
from commtrace.metrics.rank.exposed_calls import exposed_shares, most_exposed, rows_of_operation
from commtrace.metrics.rank.phases import phases
from commtrace.metrics.run.whole import worth_reporting
from commtrace.quantiles import median
from commtrace.rules._at_once import beside_compute, needed_at_once
from commtrace.rules._backward import backward_alone_ns
from commtrace.rules._drained import between_waits_ns
from commtrace.rules._late_reductions import of_gradients_late
from commtrace.rules._less import gathers_shards
from commtrace.rules._parameter_gathers import gathers_parameters

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["beside_backward_ns", "hidden_ns", "most_worth_hiding"]

_SOME = 0.2  # of what is exposed
_FAR_MORE = 2  # times as much
_NEARLY_ALL = 0.75


def most_worth_hiding(run: Measures) -> tuple[str | None, float]:
    """The operation whose hiding saves most, and its share of what is exposed, in percent.

    That is the most exposed, but where hiding another saves twice as much, and nearly all that
    hiding both does: what runs behind the other on its stream waits for that as well.
    """
    calls, shares = run_graph(run).calls, exposed_shares(run)
    can_wait = ~needed_at_once(run)[calls.row]
    most, share = most_exposed(run)
    names = [name for name, its in shares.items() if name and (its >= 100 * _SOME or name == most)]
    if most is None or len(names) < 2:
        return most, share
    lag_ns, op = at_own_pace(run, as_measured(run)), run.rows("collectives", calls.row)
    waits = [can_wait, *(can_wait & op.coded("op").being(name) for name in names)]
    edits = (changes(lag_ns, without_waits(run, its, lag_ns)) for its in waits)
    both, *each = saved_by(run, lag_ns, edits).sum(axis=0).tolist()
    saves = {name: min(its, _most_ns(run, name)) for name, its in zip(names, each, strict=True)}
    best = max(names, key=lambda name: saves[name])
    both -= sum(each) - sum(saves.values())  # what they cannot save is not in both, either
    is_all = saves[best] > max(_NEARLY_ALL * both, _FAR_MORE * saves[most])
    return (best, shares[best]) if is_all else (most, share)


def hidden_ns(run: Measures, gain: float, min_step_share: float) -> tuple[float, int]:
    """What is saved if nobody waits before its step ends, at most the gain.

    But for what the next operator needs. Parameters are waited for: if it is these that are exposed
    what is saved is no more than what computes between the same two waits of the host, and than if
    each were gathered right behind the last, where that saves enough: else smaller units may, of
    which each pass still waits for its last. In all, and with late ranks already mended.
    """
    calls = run_graph(run).calls
    can_wait, (most, _) = ~needed_at_once(run)[calls.row], most_exposed(run)
    gathers, most_ns, hides = None, np.inf, can_wait
    if most is not None and gathers_parameters(run, most):
        gathers = can_wait & gathers_shards(run)[calls.row]
        most_ns, hides = _most_ns(run, most), can_wait & ~_last_of_passes(run, gathers)

    def hidden(lag_ns: Lags) -> float:
        edits = [without_waits(run, hides, lag_ns)]
        if gathers is not None:
            edits.append(without_waits(run, can_wait & ~gathers, lag_ns))
            edits.append(called_earlier(run, gathers, lag_ns))
        each = saved_by(run, lag_ns, [changes(lag_ns, edited) for edited in edits])
        saved, *parts = each.sum(axis=0).tolist()
        if parts:
            others, earlier = parts
            saved = min(saved, others + most_ns)
            saved = min(saved, earlier) if worth_reporting(earlier, run, min_step_share) else saved
        return max(float(min(saved, gain)), 0.0)

    return _also_on_top(run, hidden, min_step_share)


def _last_of_passes(run: Measures, which: Bool) -> Bool:
    """Those of some calls that are the last of them in a forward or a backward pass."""
    calls = run_graph(run).calls
    its = np.flatnonzero(which)
    its = its[in_order(calls.rank[its].astype(np.int64), calls.launch_ns[its])]
    of = codes(calls.rank[its], calls.step[its], phases(run).take(calls.row[its]).codes)
    last = np.zeros_like(which)
    last[its[np.append(np.diff(of) != 0, True)[: its.size]]] = True
    return last


def _most_ns(run: Measures, op: str) -> float:
    """The most that hiding an operation saves: of parameters, what computes between two waits."""
    most = between_waits_ns(run, op) if gathers_parameters(run, op) else None
    return np.inf if most is None else most


def beside_backward_ns(run: Measures, gain: float, min_step_share: float) -> tuple[float, int]:
    """What is saved if gradients were reduced while backward runs, which are so behind it.

    By the program itself, on the stream that computes: their time, at most the gain and what
    backward computes with no communication beside it. In all, and with late ranks already mended.
    """
    op, _ = most_exposed(run)
    if op is None or not of_gradients_late(run, op):
        return 0.0, 0
    rows = rows_of_operation(run, op)
    rows = rows[beside_compute(run, rows)]
    backward = backward_alone_ns(run) if rows.size else None
    if backward is None:
        return 0.0, 0
    most = min(gain, median([*backward.values()]))
    which = np.isin(run_graph(run).calls.row, rows)

    def hidden(lag_ns: Lags) -> float:
        gone = changes(lag_ns, needing_nobody(run, which, lag_ns))
        return min(float(saved_by(run, lag_ns, [gone]).sum()), most)

    return _also_on_top(run, hidden, min_step_share)


def _also_on_top(
    run: Measures, hidden: Callable[[Lags], float], min_step_share: float
) -> tuple[float, int]:
    """What is hidden of the run as it is unrecorded, and with late ranks already mended."""
    measured, mended = as_measured(run), mended_lags(run, min_step_share)
    alone = hidden(at_own_pace(run, measured))
    return alone, round(alone if mended is measured else hidden(at_own_pace(run, mended)))
