"""What several rules ask of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pandas as pd

from commtrace.rules._rule import CannotLook

if TYPE_CHECKING:
    from commtrace.trace import Trace

__all__ = ["mb", "ms", "several_ranks", "step_time_ns", "worth_saying"]


_TIMES: WeakKeyDictionary[Trace, int] = WeakKeyDictionary()


def step_time_ns(trace: Trace) -> int:
    """The time that findings are weighed against: the median rank's steps, else its events.

    A step lasts until all is done that its host launched.
    """
    if trace not in _TIMES:
        _TIMES[trace] = _step_time_ns(trace)
    return _TIMES[trace]


def _step_time_ns(trace: Trace) -> int:
    steps = trace.steps[trace.steps["label"].isna()]
    events = [trace.kernels, trace.copies, trace.collectives, trace.ops]
    if len(steps):
        launched = [one[one["step"].notna()] for one in events[:3]]
        ends = pd.concat([_ends(one) for one in (steps, *launched)]).groupby(level=0).max()
        return int((ends - steps.groupby("rank")["start_ns"].min()).median())
    spans = [int(_ends(one).max() - one["start_ns"].min()) for one in events if len(one)]
    return max(spans, default=0)


def _ends(events: pd.DataFrame) -> pd.Series[int]:
    """Each rank's last end."""
    return (events["start_ns"] + events["duration_ns"]).groupby(events["rank"]).max()


def worth_saying(cost_ns: float, trace: Trace, share: float) -> bool:
    """Whether a cost is at least that share of the steps' time."""
    return cost_ns > 0 and cost_ns >= share * step_time_ns(trace)


def several_ranks(trace: Trace) -> None:
    """Raises CannotLook where there is nobody to compare with."""
    if len(trace.ranks) < 2:
        raise CannotLook("one rank only: waiting is not separable")


def mb(size_bytes: float) -> str:
    """A size for a sentence."""
    for unit, per in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= per:
            return f"{size_bytes / per:.3g} {unit}"
    return f"{size_bytes:.0f} bytes"


def ms(time_ns: float) -> str:
    """A time for a sentence."""
    if time_ns >= 9.995e8:
        return f"{time_ns / 1e9:.3g} s"
    return f"{time_ns / 1e6:.3g} ms" if time_ns >= 1e5 else f"{time_ns / 1e3:.3g} µs"
