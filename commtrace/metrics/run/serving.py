"""Whether a rank answers who sent to it, as a server does, or hands on to another, as a stage."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import Bool, Int64

__all__ = ["serves"]

_SAME = 0.25  # of the sends: of two that are served together one follows its own receiver's message


def serves(is_send: Bool, peer: Int64, start_ns: Int64, end_ns: Int64) -> bool:
    """Of a rank's messages: whether what it sends often follows one from the very receiver.

    The middle stage of a pipeline sends to one neighbour what it made of the other's, either way.
    """
    done = np.flatnonzero(~is_send)[np.argsort(end_ns[~is_send], kind="stable")]
    last = np.searchsorted(end_ns[done], start_ns[is_send], side="right") - 1
    known = last >= 0
    same = peer[is_send][known] == peer[done[last[known]]]
    return same.size > 0 and float(same.mean()) >= _SAME
