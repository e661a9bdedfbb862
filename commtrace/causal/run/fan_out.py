"""Messages that one rank sends to all others in one go, as a broadcast would."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commtrace.arrays import Int64, codes, distinct, first_rows, nth

if TYPE_CHECKING:
    from commtrace.causal.run.calls import Calls

__all__ = ["fanned_out"]

_FEWEST = 3  # ranks: of two nobody sends to several


def fanned_out(every: Calls, peer: Int64) -> tuple[Int64, Int64]:
    """Of the first send to all others, and of what these receive, a number from 0; else -1.

    It is of the kind, and which of that kind it is in the sender's step. Sends to all are of one
    kind, one behind the other, and of one rank only: where several send so, as in gossip, none is a
    server. With the steps of all calls, which are the sender's of what is received: a server steps
    its optimizer, where its workers may have no steps.
    """
    step, count = every.step, every.rank.size
    found = np.full(count, -1)
    sent = np.flatnonzero(every.is_p2p & every.is_send)
    others = distinct(every.rank).size - 1
    if not sent.size or others < _FEWEST - 1:
        return found, step
    in_step = codes(every.rank, step)
    kind = codes(in_step, every.kind)
    begins = (np.diff(sent, prepend=-2) > 1) | (np.diff(kind[sent], prepend=-1) != 0)
    run, first = np.cumsum(begins) - 1, sent[begins]
    pairs = first_rows(codes(run, peer[sent]))
    to_all = np.bincount(run[pairs], minlength=first.size) == others
    if distinct(every.rank[first[to_all]]).size != 1:
        return found, step
    heads = first[to_all]
    found[heads] = codes(every.kind[heads], nth(kind[heads]))
    head = np.full(int(every.operation.max(initial=-1)) + 1, -1)  # of each message
    head[every.operation[sent]] = np.where(to_all[run], first[run], -1)
    received = np.flatnonzero(every.is_p2p & ~every.is_send & (head[every.operation] >= 0))
    heads = head[every.operation[received]]
    found[received] = found[heads]
    step = step.copy()
    step[received] = step[heads]
    return found, step
