"""Counts and names as sentences have them."""

from __future__ import annotations

__all__ = ["counted", "cut"]


def counted(count: int, noun: str) -> str:
    """A count and its noun, which agree.

    >>> counted(1, "rank"), counted(1200, "rank"), counted(2, "copy"), counted(0, "batch")
    ('1 rank', '1,200 ranks', '2 copies', '0 batches')
    """
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{count:,} {noun[:-1]}ies"
    return f"{count:,} {noun}{'es' if noun.endswith(('ch', 's')) else 's'}"


def cut(name: str, limit: int) -> str:
    """A name of at most so many characters: what is too much is cut from its middle.

    >>> cut("forward", 20), cut("optimizer.zero_grad(set_to_none=True)", 20)
    ('forward', 'optimizer.…one=True)')
    """
    if len(name) <= limit:
        return name
    left = limit // 2
    return f"{name[:left]}…{name[left + 1 - limit :]}"
