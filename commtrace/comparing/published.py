"""How far recordings of one program differ from each other, as published A/A runs have it.

On CPUs: 189 pairs of clean recordings (gloo, 2 and 4 ranks that share two cores of a virtual
machine), see ``python -m benchmarks.compare``. On GPUs: 8 % between GPUs of one cluster (Sinha et
al., 2022, "Not All GPUs Are Created Equal"); on the same hosts 2 % is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import hypot, log, sqrt

from commtrace.comparing.estimates import Noise
from commtrace.comparing.sides import Side

__all__ = ["as_others", "of_part", "of_step"]

_DF = 10
_CPU = {"compute": 0.11, "copy": 0.11, "host": 0.19, "transfer": 0.35, "launch": 0.5}
_OTHER_GPUS, _SAME_GPUS = 0.08, 0.02
_ON_GPU = ("compute", "copy", "transfer")
_OTHER = 0.11
_SPEED = 0.13  # of all that runs on the cores of a machine, which is not always as fast
_CONTENTION = 2.0  # what others take costs more than its time: caches, and ranks that wait
_ON_CORES = ("compute", "transfer", "launch")  # of a run without GPUs; else the hosts' part
_OF_HOSTS = ("host", "launch")


def of_step(times: Mapping[str, tuple[float, float]], base: Side, candidate: Side) -> Noise:
    """Of whole steps, whose ``times`` of both sides by kind are given."""
    noise = _noise(times, base, candidate)
    if _on_gpus_only(base, candidate):
        return noise
    on_cores = sum(min(times[kind]) for kind in _ON_CORES if kind in times)
    speed = min(_SPEED, _of_all_ranks(base, candidate)) * on_cores * _spread(base, candidate)
    return replace(noise, deviation=hypot(noise.deviation, speed))


def _of_all_ranks(base: Side, candidate: Side) -> float:
    """The share by which every rank's compute changed at least: a machine's speed changes all."""
    keys = {key for its in (*base, *candidate) for key in its.sample.own_ns}
    changes = []
    for key, rank in keys:
        if key.kind == "compute" and key.cause is None:
            before, after = (
                sum(float(its.own(key, rank).mean()) for its in side) / len(side)
                for side in (base, candidate)
            )
            changes.append(log(after / before) if before > 0 and after > 0 else 0.0)
    if not changes:
        return _SPEED
    return max(min(changes), -max(changes), 0.0)


def of_part(
    kind: str, times: tuple[float, float], base: Side, candidate: Side, floor_ns: float
) -> Noise:
    """Of one kind of work in a step; no less than ``floor_ns``."""
    noise = _noise({kind: times}, base, candidate)
    return replace(noise, deviation=hypot(noise.deviation, floor_ns))


def _noise(times: Mapping[str, tuple[float, float]], base: Side, candidate: Side) -> Noise:
    """What both sides have in common varies from recording to recording.

    Without the other processes of a recording what runs on its cores could have been shorter.
    """
    on_gpus = _on_gpus_only(base, candidate)
    shares = _on_gpus(base, candidate) if on_gpus else _CPU
    recordings = _spread(base, candidate)
    parts = [shares.get(kind, _OTHER) * min(pair) * recordings for kind, pair in times.items()]
    on_cores = _OF_HOSTS if on_gpus else _ON_CORES
    before, after = (
        sum(times[kind][at] for kind in on_cores if kind in times) * _taken(side)
        for at, side in enumerate((base, candidate))
    )
    return Noise(hypot(*parts), _DF, before, after)


def _spread(base: Side, candidate: Side) -> float:
    return sqrt(1 / len(base) + 1 / len(candidate))


def _taken(side: Side) -> float:
    """The share of what ran on the cores that is due to other processes, at most."""
    return min(_CONTENTION * sum(its.foreign for its in side) / len(side), 1.0)


def _on_gpus_only(base: Side, candidate: Side) -> bool:
    return all(its.gpu_hosts is not None for its in (*base, *candidate))


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
