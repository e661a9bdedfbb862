"""How far recordings of one program differ from each other, as published A/A runs have it.

On CPUs: 105 pairs of 35 programs (gloo, 2 and 4 ranks that share two cores), see
``python -m benchmarks.compare``. On GPUs: 8 % between GPUs of one cluster (Sinha et al., 2022,
"Not All GPUs Are Created Equal"); on the same hosts 2 % is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import hypot, sqrt

from commtrace.comparing.estimates import Noise
from commtrace.comparing.sides import Side

__all__ = ["as_others", "noise"]

_DF = 10
_CPU = {"compute": 0.11, "copy": 0.11, "host": 0.19, "transfer": 0.35, "launch": 0.5}
_OTHER_GPUS, _SAME_GPUS = 0.08, 0.02
_ON_GPU = ("compute", "copy", "transfer")
_OTHER = 0.11
_ON_CORES = ("compute", "transfer", "launch")  # of a run without GPUs; else the hosts' part
_OF_HOSTS = ("host", "launch")


def noise(
    times: Mapping[str, tuple[float, float]], base: Side, candidate: Side, floor_ns: float = 0.0
) -> Noise:
    """Of sums of ``times`` of both sides by kind; no less than ``floor_ns``.

    What both sides have in common varies from recording to recording. Without the other
    processes of a recording what runs on its cores could have been that much shorter.
    """
    recordings = sqrt(1 / len(base) + 1 / len(candidate))
    on_gpus = all(its.gpu_hosts is not None for its in (*base, *candidate))
    shares = _on_gpus(base, candidate) if on_gpus else _CPU
    parts = [shares.get(kind, _OTHER) * min(pair) * recordings for kind, pair in times.items()]
    on_cores = _OF_HOSTS if on_gpus else _ON_CORES
    before, after = (
        sum(times[kind][at] for kind in on_cores if kind in times)
        * sum(its.foreign for its in side)
        / len(side)
        for at, side in enumerate((base, candidate))
    )
    return Noise(hypot(*parts, floor_ns), _DF, before, after)


def _on_gpus(base: Side, candidate: Side) -> dict[str, float]:
    same = len({its.gpu_hosts for its in (*base, *candidate)}) == 1
    return {**_CPU, **dict.fromkeys(_ON_GPU, _SAME_GPUS if same else _OTHER_GPUS)}


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
