"""Which ranks share a host, as the numbers of their GPUs tell."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

__all__ = ["first_ranks"]


def first_ranks(gpus: Iterable[tuple[int, str]]) -> dict[int, int]:
    """The first rank of each rank's host, given the GPU of each, as in ``(9, "cuda:1")``.

    torchrun and others give the ranks of a host its GPUs in their order, so that a rank's number
    less its GPU's is that of its host's first rank. None where any has several GPUs, or what is not
    numbered, and where the numbers do not agree.
    """
    parts = [(rank, *name.rpartition(":")[1:]) for rank, name in set(gpus)]
    number = {rank: int(of) for rank, colon, of in parts if colon and of.isdigit()}
    first = {rank: rank - gpu for rank, gpu in number.items()}
    on = sorted(set(first.values()))
    apart = min((later - one for one, later in pairwise(on)), default=len(parts) + 1)
    if len(number) < len(parts) or not on or on[0] < 0 or apart <= max(number.values()):
        return {}
    return first
