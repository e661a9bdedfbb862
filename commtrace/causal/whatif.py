"""What if: the run replayed with something mended, asked for in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, integers
from commtrace.causal.culprits import modelled
from commtrace.causal.edits import (
    as_measured,
    even,
    needing_nobody,
    saved,
    transferring,
    typical,
    without_waits,
)
from commtrace.causal.run_graph import run_graph
from commtrace.comms import OPERATIONS, canonical_dtype, element_bytes
from commtrace.diagnosis import CannotLook, about
from commtrace.errors import UsageError
from commtrace.expect import fit

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["EDITS", "Edited", "whatif"]

EDITS = {
    "even": "all ranks do each segment of their own work in their mean time",
    "rank=R:typical": "rank R does each segment in the time that is typical of the other ranks",
    "host=H:typical": "so do all ranks of host H",
    "link=A-B:50GB/s": "messages between the ranks A and B run at that bandwidth",
    "OP:dtype=bfloat16": "OP (all_reduce, …) sends elements of that type",
    "no-wait:OP": "nobody waits for OP before its step ends",
    "remove:OP": "OP is not called",
}
_OP = "|".join(OPERATIONS)


@dataclass(frozen=True)
class Edited:
    """One edit, made on top of those before it."""

    edit: Annotated[str, about("The edit, as it was asked for.")]
    saved_ns: Annotated[
        int | None, about("What it saves in all, on top of those before; null if refused.", "ns")
    ]
    alone_ns: Annotated[int | None, about("What it saves in all by itself.", "ns")]
    step_ns: Annotated[int | None, about("The median step after it.", "ns")]
    refused: Annotated[str | None, about("Why the model does not answer; null if it does.")] = None


_Edit = Callable[["Measures", Int64], Int64]


def whatif(run: Measures, edits: Sequence[str]) -> tuple[Edited, ...]:
    """What each edit saves, on top of those before it, and alone.

    UsageError for one that is not in ``EDITS``; CannotLook where ranks have no clock in common.
    """
    asked = [(text, _edit(run, text)) for text in edits]
    measured = lag = as_measured(run)
    answers = []
    for text, edit in asked:
        try:
            if not modelled(run):
                raise CannotLook("replays of GPUs do not hold yet: not all of a host's waits show")
            after = edit(run, lag)
            alone = int(saved(run, measured, [edit(run, measured)]).sum())
        except CannotLook as reason:
            answers.append(Edited(text, None, None, None, str(reason)))
            continue
        on_top = saved(run, lag, [after])[:, 0]
        left = run_graph(run).step_ns - saved(run, measured, [after])[:, 0]
        answers.append(Edited(text, int(on_top.sum()), alone, int(np.median(left))))
        lag = after
    return tuple(answers)


def _edit(run: Measures, text: str) -> _Edit:
    if text == "even":
        return even
    if match := re.fullmatch(r"rank=(\d+):typical", text):
        rank = int(match[1])
        if rank not in set(run.ranks["rank"].tolist()):
            raise UsageError(f"{text}: the run has no rank {rank}")
        return lambda run, lag: typical(run, [rank], lag)
    if match := re.fullmatch(r"host=(.+):typical", text):
        ranks = run.ranks.loc[run.ranks["host"].astype(object) == match[1], "rank"].tolist()
        if not ranks:
            raise UsageError(f"{text}: the run has no host {match[1]!r}")
        return lambda run, lag: typical(run, ranks, lag)
    if match := re.fullmatch(r"link=(\d+)-(\d+):([\d.]+)GB/s", text):
        return _at_bandwidth(int(match[1]), int(match[2]), float(match[3]))
    if match := re.fullmatch(rf"({_OP}):dtype=(\w+)", text):
        return _of_type(match[1], match[2], text)
    if match := re.fullmatch(rf"(no-wait|remove):({_OP})", text):
        without, op = {"no-wait": without_waits, "remove": needing_nobody}[match[1]], match[2]
        return lambda run, lag: without(run, _is(run, op), lag)
    raise UsageError(f"no edit is called {text!r}; there are {', '.join(EDITS)}")


def _is(run: Measures, op: str) -> Bool:
    its: Bool = (run.collectives["op"].astype(object) == op).to_numpy(np.bool_)[
        run_graph(run).calls.row
    ]
    if not its.any():
        raise CannotLook(f"the run has no {op}")
    return its


def _at_bandwidth(a: int, b: int, gb_s: float) -> _Edit:
    def edit(run: Measures, lag: Int64) -> Int64:
        calls = run_graph(run).calls
        rows = run.collectives.iloc[calls.row]
        peer, size = integers(rows["peer"]), integers(rows["size_bytes"])
        mine = (np.minimum(calls.rank, peer) == min(a, b)) & (
            np.maximum(calls.rank, peer) == max(a, b)
        )
        mine &= size != NULL
        if not mine.any():
            raise CannotLook(f"no message of known size between the ranks {a} and {b}")
        return transferring(run, mine, size / gb_s, lag)

    return edit


def _of_type(op: str, dtype: str, text: str) -> _Edit:
    if canonical_dtype(dtype) is None:
        raise UsageError(f"{text}: no type is called {dtype!r}")

    def edit(run: Measures, lag: Int64) -> Int64:
        its = run_graph(run)
        rows = run.collectives.iloc[its.calls.row]
        size = integers(rows["size_bytes"]).astype(np.float64)
        known = _is(run, op) & (size > 0) & rows["dtype"].notna().to_numpy()
        if not known.any():
            raise CannotLook(f"no {op} of known size and type")
        transfer = its.transfer_ns.astype(np.float64)
        wide = (
            rows["dtype"].astype(object).map(element_bytes, na_action="ignore").to_numpy(np.float64)
        )
        model = fit(size[known], transfer[known])
        if model is None:
            raise CannotLook(f"{op}: its sizes vary too little to tell latency from bandwidth")
        new = size * element_bytes(dtype) / wide
        share = (model.latency_ns + new / model.gb_s) / (model.latency_ns + size / model.gb_s)
        return transferring(run, known, np.minimum(share, 1.0) * transfer, lag)

    return edit
