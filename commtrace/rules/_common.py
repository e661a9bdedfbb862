"""What several rules ask of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.rules._rule import CannotLook

if TYPE_CHECKING:
    from commtrace.trace import Trace

__all__ = ["mb", "ms", "several_ranks", "step_time_ns", "worth_saying"]


def step_time_ns(trace: Trace) -> int:
    """The time that findings are weighed against: the median rank's steps, else its events."""
    steps = trace.steps[trace.steps["label"].isna()]
    if len(steps):
        end = (steps["start_ns"] + steps["duration_ns"]).groupby(steps["rank"]).max()
        return int((end - steps.groupby("rank")["start_ns"].min()).median())
    events = [trace.kernels, trace.copies, trace.collectives, trace.ops]
    spans = [
        int((one["start_ns"] + one["duration_ns"]).max() - one["start_ns"].min())
        for one in events
        if len(one)
    ]
    return max(spans, default=0)


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
    return f"{time_ns / 1e6:.3g} ms" if time_ns >= 1e5 else f"{time_ns / 1e3:.3g} µs"
