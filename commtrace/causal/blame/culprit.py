"""A culprit: ranks that delay a run, what they save, and what for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, structs

from commtrace.arrays import Bool, Int64
from commtrace.causal.blame.awaited import AWAITED, Waits
from commtrace.causal.blame.causes import cause_of, excess_by_cause, most_before
from commtrace.causal.edits.run_edits import saved_by
from commtrace.causal.replay.graph import Change, Lags
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.inputs import Inputs
from commtrace.causal.work.own_operators import OwnOperators
from commtrace.causal.work.segments import own_work
from commtrace.diagnosis import Cause
from commtrace.quantiles import median

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["Culprit", "as_awaited", "awaited_in", "does_more"]

_EACH = 0.25  # of what the culprit saves
_OF_ALL, _ROOT, _SEND, _RECV = map(AWAITED.index, ("collective", "root", "send", "recv"))


class Culprit(Struct, frozen=True, eq=False):
    """Ranks that together delay a run, by ``saved_ns`` alone and ``on_top_ns`` after those before.

    ``steps_ns`` is what each step is shorter without (on top), ``noise_ns`` the scatter of that.
    ``persistent`` says that it delays the steps beyond chance and noise, and ``in_every`` that it
    does so in every one: ``p_value`` is the chance that it does not, corrected for the ranks tried.
    ``spikes`` are the steps in which it
    does, if these are few. ``others_ns`` is the most that any other rank alone saves. ``cause``
    is one of CAUSES, or None; ``parts_ns`` their excess over what is typical, summed; ``call`` the
    call before which most of it is, a row of the graph's. ``waits`` are the others' for them.
    ``more`` are the operators that only they run, or on larger inputs, if these are most of it.
    ``slower`` is how many times as long they compute the same on the same, if that is most of it.
    ``instead_ns`` is of a pipeline's stage that has more to do than the others: what each step is
    shorter without that; ``saved_ns``, ``on_top_ns`` and ``steps_ns`` are then what is saved if all
    stages do as much, since such work does not vanish. So it is of ``graded`` ranks, if all ranks
    do as much. ``doubt`` says why it is not sure.
    ``in_turn`` says that they wait for the others longer than these for them.
    ``in_median`` says that only what they mostly do beyond the typical is theirs: they take turns
    with others being late besides.
    """

    ranks: tuple[int, ...]
    saved_ns: int
    on_top_ns: int
    replayed_step_ns: int
    steps_ns: Int64
    noise_ns: float
    p_value: float
    persistent: bool
    in_every: bool
    spikes: tuple[int, ...]
    others_ns: int
    cause: Cause | None
    parts_ns: dict[Cause, float]
    call: int
    waits: Waits
    more: OwnOperators | Inputs | None
    slower: float | None
    doubt: str | None
    in_turn: bool
    in_median: bool
    instead_ns: Int64 | None = None
    graded: bool = False

    @property
    def shared(self) -> bool:
        """Whether what it saves is so if the work is shared by all stages, or ranks."""
        return self.instead_ns is not None


def awaited_in(run: Measures, culprit: Culprit) -> str:
    """In which kind of AWAITED others mostly wait for it.

    In operations of all, if they wait before these for most of what it does more: in messages they
    wait longer, but for a pipeline's schedule. In the messages before which it does that, if they
    wait a good part in such: who sends late comes late to what it receives, too.
    """
    calls, waits = run_graph(run).calls, culprit.waits
    before = calls.operation[calls.place == calls.place[culprit.call]]
    there = np.isin(calls.operation[waits.call], before)
    if (waits.kind[there] == _OF_ALL).any():
        return AWAITED[_OF_ALL]
    own = _SEND if calls.is_send[culprit.call] else _RECV
    waited = waits.end_ns - waits.start_ns
    its = calls.is_p2p[culprit.call] and waited[waits.kind == own].sum() >= _EACH * waited.sum()
    return AWAITED[own] if its else waits.mostly


def does_more(run: Measures, culprit: Culprit) -> bool:
    """Whether it is late to sends and recvs since it computes more, rather than as one of these."""
    calls = run_graph(run).calls
    its = np.isin(calls.rank, culprit.ranks) & calls.is_p2p
    sends = calls.is_send[its]
    return culprit.cause in ("compute", "copy") and bool(sends.any() and not sends.all())


def as_awaited(
    run: Measures, culprit: Culprit, edit: Change, lag_ns: Lags, worth_ns: float
) -> Sequence[Culprit]:
    """The culprit; twice, where others await it as a root, and in operations of all as well.

    ``edit`` is what changes of these lags without what it does more. Each saves what its work
    before operations of that kind does, if that is worth so much, and a good part, in both.
    """
    calls, kinds = run_graph(run).calls, set(culprit.waits.kind.tolist())
    mine = np.isin(calls.rank, culprit.ranks)
    unknown = np.isnan(own_work(run).typical_ns[mine]).any()  # which of its work is too much
    if not culprit.persistent or kinds != {_OF_ALL, _ROOT} or unknown:
        return [culprit]
    as_root = mine & calls.from_root & calls.is_root
    each = {_ROOT: as_root, _OF_ALL: mine & ~as_root}
    edits = (_only(run, which, edit) for which in each.values())
    whole, *shorter = saved_by(run, lag_ns, (edit, *edits)).T
    least = max(worth_ns, _EACH * culprit.on_top_ns)
    longer = culprit.on_top_ns / max(int(whole.sum()), 1)  # for waits for cores
    if min(float(steps.sum()) * longer for steps in shorter) < least:
        return [culprit]
    parts = [
        _part(run, culprit, kind, which, np.rint(steps * longer).astype(np.int64))
        for (kind, which), steps in zip(each.items(), shorter, strict=True)
    ]
    return sorted(parts, key=lambda part: -part.on_top_ns)


def _only(run: Measures, which: Bool, edit: Change) -> Change:
    """Of an edit of own work that before some calls."""
    its, (edges, lag_ns) = run_graph(run), edit
    mine = which[its.own_call[its.own_of(edges)]]
    return edges[mine], lag_ns[mine]


def _part(run: Measures, culprit: Culprit, kind: int, which: Bool, steps_ns: Int64) -> Culprit:
    """Of a culprit what it does before some calls, which others await in that kind."""
    parts = excess_by_cause(run, culprit.ranks, which)
    waits, of_kind = culprit.waits, culprit.waits.kind == kind
    on_top = int(steps_ns.sum())
    rest = culprit.steps_ns - steps_ns
    return structs.replace(
        culprit,
        saved_ns=round(culprit.saved_ns * on_top / max(culprit.on_top_ns, 1)),
        on_top_ns=on_top,
        replayed_step_ns=culprit.replayed_step_ns + int(median(rest)),
        steps_ns=steps_ns,
        cause=cause_of(run, culprit.ranks, parts),
        parts_ns=parts,
        call=most_before(run, culprit.ranks, own_work(run).excess_ns, which),
        waits=Waits(*(its[of_kind] for its in structs.astuple(waits))),
    )
