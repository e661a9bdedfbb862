"""What if: the run replayed with something mended, asked for in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import NULL, Bool, Int64
from commtrace.causal.edit_names import EDITS
from commtrace.causal.edits.not_issued import not_issued
from commtrace.causal.edits.run_edits import (
    as_measured,
    even,
    saved,
    step_ns,
    transferring,
    typical,
    without_waits,
)
from commtrace.causal.replay.graph import Lags, changed
from commtrace.causal.run.replayable import need_replay
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.work.cores import FULL, cores_used
from commtrace.causal.work.segments import work_with
from commtrace.comms import OPERATIONS, canonical_dtype, element_bytes
from commtrace.diagnosis import CannotLook
from commtrace.errors import UsageError
from commtrace.expect import fit
from commtrace.metrics.rank.hosts import ranks_of_hosts
from commtrace.metrics.run.whole import profiler_steps
from commtrace.quantiles import median
from commtrace.table import Column, Rows, Table

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = [
    "EDITED",
    "REPLAYED_STEPS",
    "Edited",
    "WhatIf",
    "edited",
    "replayed_steps",
    "whatif",
]

_OP = "|".join(OPERATIONS)


EDITED = Table(
    "edits",
    "one edit, made on top of those before it",
    (
        Column("edit", "category", "The edit, as it was asked for."),
        Column(
            "saved_ns",
            "Int64",
            "What it saves in all, on top of those before; negative if it costs, null if refused.",
            "ns",
        ),
        Column("alone_ns", "Int64", "What it saves in all by itself.", "ns"),
        Column("step_ns", "Int64", "The median step after it.", "ns"),
        Column("refused", "category", "Why the model does not answer; null if it does."),
    ),
)

REPLAYED_STEPS = Table(
    "replayed_steps",
    "one step, as measured or after an edit and those before it; refused ones have none",
    (
        Column("edit", "category", "The edit; null as measured."),
        Column("step", "int64", "n of `ProfilerStep#n`; of a run without steps its n-th tenth."),
        Column("duration_ns", "int64", "How long it is, from the last rank's end to that.", "ns"),
    ),
)


@dataclass(frozen=True)
class Edited:
    """One edit, made on top of those before it: a row of EDITED."""

    edit: str
    saved_ns: int | None = None
    alone_ns: int | None = None
    step_ns: int | None = None
    refused: str | None = None


@dataclass(frozen=True, eq=False)
class WhatIf:
    """The edits and, after each that was not refused, all lags: ``lags_ns``, the measured first.

    As measured the run took ``run_ns`` in all and ``step_ns`` in its median step, of which it has
    ``steps``: 0 if the trace has none.
    """

    edits: tuple[Edited, ...]
    lags_ns: tuple[Lags, ...]
    run_ns: int
    step_ns: int
    steps: int


_Edit = Callable[["Measures", Lags], Lags]


def whatif(run: Measures, edits: Sequence[str]) -> WhatIf:
    """What each edit saves, on top of those before it, and alone.

    UsageError for one that is not in ``EDITS``; CannotLook where the trace does not hold a run's
    graph.
    """
    asked = [(text, _edit(run, text)) for text in edits]
    measured = as_measured(run)
    answers, lags = [], [measured]
    for text, edit in asked:
        try:
            need_replay(run)
            after = edit(run, lags[-1])
            alone = int(saved(run, measured, [edit(run, measured)]).sum())
        except CannotLook as reason:
            answers.append(Edited(text, refused=str(reason)))
            continue
        on_top = int(saved(run, lags[-1], [after]).sum())
        usual = int(median(step_ns(run, [after])))
        answers.append(Edited(text, on_top, alone, usual))
        lags.append(after)
    steps = step_ns(run, [measured])[:, 0]
    return WhatIf(
        tuple(answers),
        tuple(lags),
        int(steps.sum()),
        int(median(steps)),
        steps.size if len(profiler_steps(run)) else 0,
    )


def edited(run: Measures, edits: Sequence[str]) -> Rows:
    """What each edit saves: EDITED. Errors as of ``whatif``."""
    return EDITED.of_dicts([asdict(its) for its in whatif(run, edits).edits])


def replayed_steps(run: Measures, edits: Sequence[str]) -> Rows:
    """Every step as measured, and after each edit: REPLAYED_STEPS. Errors as of ``whatif``."""
    answer, steps = whatif(run, edits), run_graph(run).steps
    durations = step_ns(run, answer.lags_ns).T
    names = [None, *(its.edit for its in answer.edits if its.refused is None)]
    return REPLAYED_STEPS.of_dicts(
        [
            {"edit": name, "step": step, "duration_ns": duration}
            for name, lasts in zip(names, durations, strict=True)
            for step, duration in zip(steps, lasts.tolist(), strict=True)
        ]
    )


def _edit(run: Measures, text: str) -> _Edit:
    if text == "even":
        return lambda run, lag: changed(lag, even(run, lag, work=work_with(run, lag)))
    if match := re.fullmatch(r"rank=(\d+):typical", text):
        rank = int(match[1])
        if rank not in run.rows("ranks").ints("rank"):
            raise UsageError(f"{text}: the run has no rank {rank}")
        return _typical([rank])
    if match := re.fullmatch(r"host=(.+):typical", text):
        ranks = ranks_of_hosts(run).get(match[1])
        if not ranks:
            raise UsageError(f"{text}: the run has no host {match[1]!r}")
        return _typical(ranks)
    if match := re.fullmatch(r"link=(\d+)-(\d+):(-?\d+\.?\d*)GB/s", text):
        if float(match[3]) <= 0:
            raise UsageError(f"{text}: a bandwidth is more than 0")
        return _at_bandwidth(int(match[1]), int(match[2]), float(match[3]))
    if match := re.fullmatch(rf"({_OP}):dtype=(\w+)", text):
        return _of_type(match[1], match[2], text)
    if match := re.fullmatch(rf"(no-wait|remove):({_OP})", text):
        op = match[2]
        if match[1] == "no-wait":
            return lambda run, lag: _without_waits(run, op, lag)
        return lambda run, lag: not_issued(run, _is(run, op), lag)
    raise _miswritten(text)


def _miswritten(text: str) -> UsageError:
    """What is wrong with a text that is no edit, and how the one that may be meant is written."""
    begun = text.partition("=" if "=" in text else ":")[0]
    meant = [form for form in EDITS if begun and re.split("[=:]", form)[0] == begun]
    if meant == [begun]:
        return UsageError(f"{text}: {begun} takes nothing behind it")
    if meant == [f"{begun}:OP"] and text.startswith(f"{begun}:"):
        return UsageError(f"{text}: OP is one of {', '.join(OPERATIONS)}")
    if meant:
        return UsageError(f"{text}: {begun} is written as {' or '.join(meant)}")
    return UsageError(f"no edit is called {text!r}; there are {', '.join(EDITS)}")


def _typical(ranks: list[int]) -> _Edit:
    def edit(run: Measures, lag: Lags) -> Lags:
        if set(run_graph(run).calls.rank.tolist()) <= set(ranks):
            raise CannotLook("no other ranks to compare with")
        return changed(lag, typical(run, ranks, lag, work=work_with(run, lag)))

    return edit


def _is(run: Measures, op: str) -> Bool:
    its = run.rows("collectives", run_graph(run).calls.row).coded("op").being(op)
    if not its.any():
        raise CannotLook(f"the run has no {op}")
    return its


def _without_waits(run: Measures, op: str, lag: Lags) -> Lags:
    which, used = _is(run, op), cores_used(run)
    if used is not None and used >= FULL:
        raise CannotLook(
            f"operators and transfers ask for {100 * used:.0f} % of the CPU cores that the ranks "
            "share: what need not wait has no core to run on"
        )
    return without_waits(run, which, lag)


def _transfer(run: Measures, lag: Lags) -> Int64:
    """How long each call takes with these lags once all are there."""
    its = run_graph(run)
    edges, call = its.transfers
    took = np.zeros(its.calls.rank.size, dtype=np.int64)
    took[call] = np.maximum(lag[edges], 0)
    return took


def _at_bandwidth(a: int, b: int, gb_s: float) -> _Edit:
    def edit(run: Measures, lag: Lags) -> Lags:
        calls = run_graph(run).calls
        rows = run.rows("collectives", calls.row)
        peer, size = rows.ints("peer"), rows.ints("size_bytes")
        mine = (np.minimum(calls.rank, peer) == min(a, b)) & (
            np.maximum(calls.rank, peer) == max(a, b)
        )
        mine &= (size != NULL) & (_transfer(run, lag) > 0)
        if not mine.any():
            raise CannotLook(f"no message of known size between the ranks {a} and {b}")
        return transferring(run, mine, size / gb_s, lag)

    return edit


def _of_type(op: str, dtype: str, text: str) -> _Edit:
    if canonical_dtype(dtype) is None:
        raise UsageError(f"{text}: no type is called {dtype!r}")

    def edit(run: Measures, lag: Lags) -> Lags:
        its = run_graph(run)
        rows = run.rows("collectives", its.calls.row)
        size, of_type = rows.ints("size_bytes").astype(np.float64), rows.coded("dtype")
        known = _is(run, op) & (size > 0) & of_type.known
        if not known.any():
            raise CannotLook(f"no {op} of known size and type")
        measured = its.transfer_ns.astype(np.float64)
        wide = np.asarray([*map(element_bytes, of_type.names), None], np.float64)[of_type.codes]
        model = fit(size[known], measured[known])
        if model is None:
            raise CannotLook(f"{op}: its sizes vary too little to tell latency from bandwidth")
        new = size * element_bytes(dtype) / wide
        share = (model.latency_ns + new / model.gb_s) / (model.latency_ns + size / model.gb_s)
        return transferring(run, known, np.minimum(share, 1.0) * _transfer(run, lag), lag)

    return edit
