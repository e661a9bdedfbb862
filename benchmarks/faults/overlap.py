"""Communication and compute that do not go together."""

from __future__ import annotations

from benchmarks.faults.case import Fault, Truth
from benchmarks.faults.loop import Loop
from benchmarks.faults.workloads import everyone_computes, size_for

__all__ = ["FAULTS", "layers"]


def layers(loop: Loop) -> None:
    """Compute in four parts, and what comes between them."""
    for _ in range(loop.steps):
        with loop.step():
            everyone_computes(loop, 0.23, kernels=3)
            for _ in range(3):
                loop.at("between")
                everyone_computes(loop, 0.23, kernels=3)
            loop.synchronise()
            everyone_computes(loop, 0.05, kernels=1, place="update")


def exposed(loop: Loop, share: float, present: bool) -> Truth:
    """Reductions are waited for at once, though the next layer does not need them."""
    size = size_for(loop, "all_reduce", share * loop.step_us / 3)

    def reduces() -> None:
        loop.synchronise()
        loop.together("all_reduce", size, wait=present)

    loop.hooks["between"].append(reduces)
    return Truth("exposed-communication")


def false_overlap(loop: Loop, share: float, present: bool) -> Truth:
    """The same, written with ``async_op=True``."""
    size = size_for(loop, "all_reduce", share * loop.step_us / 3)

    def reduces() -> None:
        loop.synchronise()
        loop.together("all_reduce", size, wait=present, asynchronous=1)

    loop.hooks["between"].append(reduces)
    return Truth("false-overlap", also=("exposed-communication",))


def contention(loop: Loop, share: float, present: bool) -> Truth:
    """Kernels take longer while gradients are reduced."""
    loop.beside = 1 + present * share / 0.26  # about what of a step runs beside communication
    return Truth("contention")


def head_of_line(loop: Loop, share: float, present: bool) -> Truth:
    """A gather that compute needs queues behind gradients that nobody awaits."""
    large = size_for(loop, "reduce_scatter", share * loop.step_us)
    small = size_for(loop, "all_gather", 2 * loop.latency_us)
    loop.run.groups["parameters"] = loop.everyone

    def both() -> None:
        loop.together("reduce_scatter", large)
        stream = 20 if present else 21
        loop.together("all_gather", small, stream=stream, group="parameters", wait=True)
        everyone_computes(loop, 0.45, kernels=5, place="update")
        loop.synchronise()

    loop.hooks["end"].append(both)
    return Truth("head-of-line", also=("exposed-communication",))


FAULTS = (
    Fault("exposed-communication", exposed, layers),
    Fault("false-overlap", false_overlap, layers),
    Fault("contention", contention),
    Fault("head-of-line", head_of_line),
)
