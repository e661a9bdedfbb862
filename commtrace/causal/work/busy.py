"""When a rank's host and devices were at work, on the run's clock."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from commtrace.intervals import NEVER, Intervals, subtract, united
from commtrace.measures import measure
from commtrace.metrics.rank.activity import Activity, Device, device_activity
from commtrace.metrics.run.run_clock import intervals_on_run

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["devices_busy", "devices_compute", "devices_only_communicate", "host_busy"]


def host_busy(run: Measures, rank: int) -> Intervals:
    """When a rank's host ran operators."""
    its = device_activity(run).get(Device(rank, "cpu"))
    if its is None or its.compute is None:
        return NEVER
    return intervals_on_run(run, rank, its.compute)


def devices_busy(run: Measures, rank: int) -> Intervals:
    """When any of a rank's GPUs computed or copied."""
    its = _gpus(run).get(rank, [])
    return _on_run(run, rank, [part for work in its for part in (work.compute, work.copy)])


def devices_compute(run: Measures, rank: int) -> Intervals:
    """When any of a rank's GPUs computed."""
    return _on_run(run, rank, [work.compute for work in _gpus(run).get(rank, [])])


def devices_only_communicate(run: Measures, rank: int) -> Intervals:
    """When a rank's GPUs ran communication, and nothing else."""
    its = _on_run(run, rank, [work.communication for work in _gpus(run).get(rank, [])])
    return subtract(its, devices_busy(run, rank))


def _on_run(run: Measures, rank: int, parts: Iterable[Intervals | None]) -> Intervals:
    known = united(*(part for part in parts if part is not None))
    return intervals_on_run(run, rank, known)


@measure
def _gpus(run: Measures) -> dict[int, list[Activity]]:
    of_rank: dict[int, list[Activity]] = {}
    for device, its in device_activity(run).items():
        if device.device != "cpu":
            of_rank.setdefault(device.rank, []).append(its)
    return of_rank
