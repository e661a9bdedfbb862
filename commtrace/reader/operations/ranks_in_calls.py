"""Whose calls a file holds, by what PyTorch records of each: its rank and its group's ranks."""

from __future__ import annotations

from collections.abc import Iterable

from commtrace.comms import SYNCHRONISING, canonical_operation
from commtrace.reader.json.events import Arguments, Call
from commtrace.reader.operations.groups import listed_ranks

__all__ = ["ranks_in_calls"]

_MOST_RANKS = 2**20  # beyond any job: a number larger than this is damage


def ranks_in_calls(calls: Iterable[Call]) -> frozenset[int]:
    """The global ranks that made a file's calls, as far as these tell.

    Of operations without a root: of others PyTorch records the root, or the peer, as the rank.
    """
    each = {
        (its.collective, its.rank, str(its.group_ranks or ""), its.rank_start, its.rank_stride): its
        for its in (call.args for call in calls)
        if its.rank is not None
    }
    found = {_global_rank(its) for its in each.values()}
    return frozenset(rank for rank in found if rank is not None and 0 <= rank < _MOST_RANKS)


def _global_rank(args: Arguments) -> int | None:
    if canonical_operation(args.collective or "") not in SYNCHRONISING or args.rank is None:
        return None
    listed, _ = listed_ranks(args.group_ranks)
    if 0 <= args.rank < len(listed):
        return listed[args.rank]
    start, stride = args.rank_start, args.rank_stride
    if start is None or stride is None or stride <= 0 or args.rank < 0:
        return None
    return start + stride * args.rank
