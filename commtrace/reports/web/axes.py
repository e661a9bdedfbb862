"""Ticks and their labels, for axes of time and logarithmic ones."""

from __future__ import annotations

import math
from collections.abc import Iterator

from commtrace.units import ms

__all__ = ["log_ticks", "time_ticks"]

_BETWEEN_PX = 110


def time_ticks(span_ns: int, width: float) -> Iterator[tuple[float, str]]:
    """Where ticks stand on an axis that starts at 0, and what they say.

    >>> list(time_ticks(10_000_000, 400))
    [(0.0, '0'), (200.0, '5 ms'), (400.0, '10 ms')]
    """
    least = span_ns * _BETWEEN_PX / width
    power = 10 ** math.floor(math.log10(max(least, 1)))
    step = next(power * times for times in (1, 2, 5, 10) if power * times >= least)
    for count in range(int(span_ns / step) + 1):
        time = count * step
        yield time / span_ns * width, ms(time) if time else "0"


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, and what lies between them where there are few, from low to high.

    >>> log_ticks(0.5, 200), log_ticks(20, 60)
    ([1.0, 10.0, 100.0], [20.0, 30.0, 50.0])
    """
    ratio = high / low
    times = (1,) if ratio >= 100 else (1, 2, 5) if ratio >= 20 else (1, 1.5, 2, 3, 5, 7)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [float(f"{each}e{power}") for power in powers for each in times]
    return [tick for tick in every if low <= tick <= high]
