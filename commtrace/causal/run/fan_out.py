"""Messages that one rank sends to all others in one go, as a broadcast would."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64, codes, distinct, first_rows, nth

if TYPE_CHECKING:
    from commtrace.causal.run.calls import Calls

__all__ = ["fanned_out"]

_FEWEST = 3  # ranks: of two nobody sends to several


def fanned_out(every: Calls, in_step: Int64, peer: Int64) -> Int64:
    """Of the first send to all others, and of what these receive, a number from 0; else -1.

    It is of the kind, and which of that kind it is in the sender's step. Sends to all are of one
    kind, one behind the other. ``in_step`` numbers the rank and step of each call.
    """
    found = np.full(in_step.size, -1)
    sent = np.flatnonzero(every.is_p2p & every.is_send)
    others = distinct(every.rank).size - 1
    if not sent.size or others < _FEWEST - 1:
        return found
    begins = (np.diff(sent, prepend=-2) > 1) | (
        np.diff(codes(in_step, every.kind)[sent], prepend=-1) != 0
    )
    run = np.cumsum(begins) - 1
    first = sent[begins]
    pair = codes(run, peer[sent])
    peers = np.bincount(run[first_rows(pair)], minlength=first.size)
    to_all = peers == others
    first = first[to_all]
    number = codes(every.kind[first], nth(codes(in_step[first], every.kind[first])))
    found[first] = number
    of_run = np.full(to_all.size, -1)
    of_run[to_all] = number
    message = np.full(int(every.operation.max(initial=-1)) + 1, -1)
    message[every.operation[sent]] = of_run[run]
    received = np.flatnonzero(every.is_p2p & ~every.is_send)
    found[received] = message[every.operation[received]]
    return found
