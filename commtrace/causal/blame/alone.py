"""What ranks save by themselves, replayed only where that can matter."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from commtrace.arrays import Float64, Int64

__all__ = ["Alone"]

_AT_ONCE = 16  # ranks: replayed together they take little longer than one


class Alone:
    """What each step is shorter if one rank alone is edited.

    A rank saves what ``at_most_ns`` says, or less: that stands for what it saves unless it is among
    the ``asked``. These are ``replayed``, which gives steps × ranks, once less would matter.
    """

    def __init__(
        self,
        asked: Sequence[int],
        at_most_ns: Mapping[int, float],
        replayed: Callable[[Sequence[int]], Int64],
    ) -> None:
        self.asked, self._at_most_ns, self._replayed = asked, at_most_ns, replayed
        self._steps: dict[int, Int64] = {}

    def steps(self, ranks: Sequence[int]) -> Int64:
        """What each of some ranks that are asked saves: steps × ranks."""
        wanted = self.asked if len(self.asked) <= _AT_ONCE else ranks
        if left := [one for one in wanted if one not in self._steps]:
            self._steps |= zip(left, self._replayed(left).T, strict=True)
        return np.stack([self._steps[one] for one in ranks], axis=1)

    def beyond(self, least_ns: float) -> list[int]:
        """Those of the asked that can save so much."""
        return [one for one in self.asked if self._at_most_ns[one] >= least_ns]

    def most(self, ranks: Collection[int], least_ns: float = 0.0) -> float:
        """The most that any of some ranks surely saves; ``least_ns`` where none saves more."""
        most, asked = least_ns, set(self.asked)
        order = sorted(ranks, key=lambda one: -self._at_most_ns[one])
        for at in range(0, len(order), _AT_ONCE):
            some = [one for one in order[at : at + _AT_ONCE] if self._at_most_ns[one] > most]
            most = max([most, *(self._at_most_ns[one] for one in some if one not in asked)])
            if mine := [one for one in some if one in asked]:
                most = max([most, *_surely(self.steps(mine)).tolist()])
        return most


def _surely(steps_ns: Int64) -> Float64:
    """What is saved in all, less the standard error of that: steps × edits."""
    count = steps_ns.shape[0]
    error = steps_ns.std(axis=0, ddof=1) * np.sqrt(count) if count > 1 else 0.0
    return np.asarray(np.trunc(steps_ns.sum(axis=0) - error))
