"""The host is in the way, or something is set up."""

from __future__ import annotations

from benchmarks.faults.case import Fault, Truth
from benchmarks.faults.loop import Loop
from benchmarks.faults.workloads import gloo

__all__ = ["FAULTS"]

_LABEL = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def host_sync(loop: Loop, share: float, present: bool) -> Truth:
    """The host reads each reduced loss, and launches the next small kernels too slowly.

    Without the reading it is a step ahead, and its time does not show.
    """
    loop.host_leads = True
    delay = share * loop.step_us / 50

    def reads() -> None:
        loop.together("all_reduce", 4096, wait=True)
        for rank in loop.everyone:
            if present:
                to_host = {"kind": "DtoH", "memory": "pageable", "size": 4}
                loop.copy(rank, 2, blocks=True, **to_host)
            for _ in range(50):
                loop.compute(rank, 10, name="elementwise", launch_us=10 + delay)

    loop.hooks["end"].append(reads)
    return Truth("host-sync", also=("launch-gap", "exposed-communication"))


def input_bound(loop: Loop, share: float, present: bool) -> Truth:
    """Every host waits for its data before each step, and its device with it."""
    loop.host_leads = False
    waits = share * loop.step_us * present

    def loads() -> None:
        for rank in loop.everyone:
            loop.stall(rank, waits * loop.noise("data", rank), _LABEL)

    loop.hooks["input"].append(loads)
    return Truth("input-bound", also=("launch-gap",))


def host_bound(loop: Loop, share: float, present: bool) -> Truth:
    """Every host is in a loop of its program before each step's operators."""
    loops = share * loop.step_us * present

    def tokenizes() -> None:
        for rank in loop.everyone:
            took = loops * loop.noise("loops", rank)
            loop.stall(rank, took, line="train.py:31 in tokenize")

    loop.hooks["input"].append(tokenizes)
    return Truth("host-bound")


def launch_gap(loop: Loop, share: float, present: bool) -> Truth:
    """Small kernels at the start of each step, one launch each. Without: one for all."""
    loop.host_leads = False
    lasts, gap = loop.dice.uniform(3, 6), loop.dice.uniform(10, 25)
    count = max(1, round(share * loop.step_us / gap))

    def small() -> None:
        for rank in loop.everyone:
            for place in range(count):
                first = place == 0
                launch_us = lasts + gap if present or first else 0.0
                loop.compute(rank, lasts, name="elementwise", launch_us=launch_us)

    loop.hooks["input"].append(small)
    return Truth("launch-gap")


def cold_start(loop: Loop, share: float, present: bool) -> Truth:
    """The first operation connects the ranks. ``share`` is of the whole run."""
    setup = share * loop.step_us * loop.steps * present
    seen: list[str] = []

    def first(op: str, us: float) -> float:
        cold = not seen
        seen.append(op)
        return us + setup * cold

    loop.wire = first
    return Truth("cold-start", also=("exposed-communication",))


FAULTS = (
    Fault("host-sync", host_sync),
    Fault("input-bound", input_bound),
    Fault("host-bound", host_bound, gloo, lambda seed: Loop(seed, backend="gloo")),
    Fault("launch-gap", launch_gap),
    Fault("cold-start", cold_start),
)
