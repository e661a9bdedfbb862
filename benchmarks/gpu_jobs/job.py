"""A job, what is wrong with it, and which first finding is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.gpu_jobs.simulator import Simulation

__all__ = ["LATE", "MESSAGE", "STEPS", "Job"]

STEPS = 6
LATE = ("straggler",)
MESSAGE = ("straggler", "late-sender", "late-receiver")


@dataclass(frozen=True)
class Job:
    """A job that ``simulate`` runs with its fault or without.

    The first finding is right if it is by one of ``rules`` and blames ``ranks``, nobody more
    than others where there are none. Without ``wrong`` the job is healthy: it may have a finding
    by one of ``rules``, and no other. The files of ``lost`` ranks are missing.
    """

    name: str
    simulate: Callable[[bool], Simulation]
    wrong: str = ""
    rules: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
