"""Whose calls a file holds, by what PyTorch records of each: its rank and its group's ranks."""

from __future__ import annotations

from msgspec.structs import replace

from commtrace.comms import SYNCHRONISING, canonical_operation
from commtrace.reader.json.events import Arguments, Call
from commtrace.reader.operations.groups import listed_ranks

__all__ = ["ranks_and_calls"]

_MESSAGES = ("send", "recv")
_WAIT = "wait"
_MOST_RANKS = 2**20  # beyond any job: a number larger than this is damage


def ranks_and_calls(calls: tuple[Call, ...]) -> tuple[frozenset[int], tuple[Call, ...]]:
    """The global ranks that made a file's calls, as far as these tell; and the calls.

    PyTorch records the caller's rank of operations without a root only, by its number in the group;
    of others it is the root, or the peer. Other tools may write the caller's global rank with all
    operations, or all but messages: then these are without it, since it is neither a root's nor a
    peer's.
    """
    unlike = {
        (its.collective, its.rank, str(its.group_ranks or ""), its.rank_start, its.rank_stride): its
        for its in (call.args for call in calls)
        if its.rank is not None and its.collective != _WAIT  # that of no group
    }
    every = list(unlike.values())
    own, keeping = _own_rank(every), tuple[str, ...]()
    if own is None:
        keeping = _MESSAGES
        own = _own_rank([its for its in every if its.collective not in keeping])
    if own is not None:
        calls = tuple(
            call
            if call.args.collective in keeping
            else replace(call, args=replace(call.args, rank=None))
            for call in calls
        )
    found = {_global_rank(its) for its in every} if own is None else {own}
    return frozenset(its for its in found if its is not None and 0 <= its < _MOST_RANKS), calls


def _own_rank(each: list[Arguments]) -> int | None:
    """The global rank that all calls give, where it is not its number in the group of one."""
    ranks = {its.rank for its in each}
    listed = [listed_ranks(its.group_ranks) for its in each]
    if len(ranks) != 1 or not all(cut or ranks.issubset(group) for group, cut in listed):
        return None
    (rank,) = ranks
    other = any(
        _gives_own(its) and rank in group and group.index(rank) != rank
        for its, (group, _) in zip(each, listed, strict=True)
    )
    return rank if other else None


def _gives_own(args: Arguments) -> bool:
    """Whether PyTorch records the caller's own rank with it."""
    op = canonical_operation(args.collective or "")
    return op in SYNCHRONISING or args.collective == "coalesced"


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
