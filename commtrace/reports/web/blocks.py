"""Neighbours taken together where there are too many to be drawn one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["blocks"]

_T = TypeVar("_T")


def blocks(items: Sequence[_T], most: int) -> Iterator[Sequence[_T]]:
    """The items, in order, in at most so many parts, all but the last of the same power of two.

    So the ranks of a host are rarely in two of them.

    >>> list(blocks("abcde", 3)), list(blocks("ab", 3)), [len(b) for b in blocks(range(20), 7)]
    (['ab', 'cd', 'e'], ['a', 'b'], [4, 4, 4, 4, 4])
    """
    each = 1 << (-(-len(items) // most) - 1).bit_length() if items else 1
    return (items[start : start + each] for start in range(0, len(items), each))
