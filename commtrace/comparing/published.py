"""How far recordings of one program differ from each other, as published A/A runs have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import hypot, sqrt

from commtrace.comparing.estimates import Noise

__all__ = ["as_others", "noise"]

_DF = 10
_SHARE = {"compute": 0.11, "copy": 0.11, "host": 0.19, "transfer": 0.35, "launch": 0.5}
_OTHER = 0.11
_FLOOR = 0.01  # of the step
_ON_CORES = ("compute", "transfer", "launch")


def noise(
    times: Mapping[str, tuple[float, float]],
    foreign: Sequence[Sequence[float]],
    floor_ns: float = 0.0,
) -> Noise:
    """Of sums of ``times`` of both sides by kind; no less than ``floor_ns``.

    What both sides have in common varies from recording to recording. ``foreign`` is the share of
    the cores that other processes took in each recording of each side: without these what
    runs on cores could have been that much shorter.
    """
    recordings = sqrt(sum(1 / len(side) for side in foreign))
    parts = [_SHARE.get(kind, _OTHER) * min(pair) * recordings for kind, pair in times.items()]
    on_cores = [sum(times[kind][at] for kind in _ON_CORES if kind in times) for at in (0, 1)]
    longer = [time * sum(side) / len(side) for time, side in zip(on_cores, foreign, strict=True)]
    return Noise(hypot(*parts, floor_ns), _DF, *longer)


def as_others(noise: Noise, its: tuple[float, float], others: tuple[float, float]) -> Noise:
    """Of one rank: other processes make it no longer than they make others beside it."""
    base, candidate = (
        mine / max(mean, 1.0) * max(mean - least, 0.0)
        for mine, mean, least in zip(its, others, reversed(others), strict=True)
    )
    return replace(
        noise,
        longer_base=min(noise.longer_base, base),
        longer_candidate=min(noise.longer_candidate, candidate),
    )
