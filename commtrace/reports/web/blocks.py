"""Neighbours taken together where there are too many to be drawn one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["blocks"]

_T = TypeVar("_T")


def blocks(items: Sequence[_T], most: int) -> Iterator[Sequence[_T]]:
    """The items, in order, in at most so many parts, all but the last equally long.

    >>> list(blocks("abcde", 3)), list(blocks("ab", 3))
    (['ab', 'cd', 'e'], ['a', 'b'])
    """
    each = -(-len(items) // most) or 1
    return (items[start : start + each] for start in range(0, len(items), each))
