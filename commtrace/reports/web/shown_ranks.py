"""Which ranks are drawn where there are too many."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

__all__ = ["shown_ranks"]


def shown_ranks(ranks: Sequence[int], named: Collection[int], most: int) -> Sequence[int]:
    """All; of more than so many up to half of them ``named`` ones, and others evenly between.

    >>> shown_ranks(range(100), {41}, 4)
    [0, 41, 50, 99]
    """
    if len(ranks) <= most:
        return ranks
    first = [rank for rank in ranks if rank in named][: most // 2]
    spread = np.linspace(0, len(ranks) - 1, most - len(first)).round().astype(int)
    return sorted({*first, *(ranks[place] for place in spread.tolist())})
