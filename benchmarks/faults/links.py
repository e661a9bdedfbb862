"""Links that are slower than they should be, known from a recorded topology or from before."""

# ruff: noqa: ARG001 - all faults are called alike
from __future__ import annotations

from benchmarks.faults.case import Fault, Truth
from benchmarks.faults.loop import Loop
from benchmarks.faults.workloads import plain, size_for
from commtrace.synthetic import one_machine

__all__ = ["FAULTS"]

_USUAL_GB_S = 370.0  # NVLink4 x18, as the table of links has it


def _nvlink(seed: int) -> Loop:
    loop = Loop(seed, ranks=4, manifest=one_machine(4))
    loop.gb_s = _USUAL_GB_S * loop.dice.uniform(0.9, 1.1)
    return loop


def below_link_speed(loop: Loop, share: float, present: bool) -> Truth:
    """All operations take a slower way: two to five times as long, some of it hidden."""
    slower = loop.dice.uniform(2.5, 5)
    _reduces_behind(loop, share / (slower - 1))
    if present:
        loop.wire = lambda _, us: us + (slower - 1) * (us - loop.latency_us)
    return Truth("below-link-speed", also=("exposed-communication",))


def degraded_link(loop: Loop, share: float, present: bool) -> Truth:
    """From some step on operations take longer."""
    slower = loop.dice.uniform(1.4, 4)
    since = loop.dice.randrange(4, 9)
    after = 1 - (since - 1) / loop.steps
    _reduces_behind(loop, share / (slower - 1) / after)
    if present:
        loop.wire = lambda _, us: us * (slower if loop.number >= since else 1)
    return Truth("degraded-link", also=("exposed-communication",))


def wrong_algorithm(loop: Loop, share: float, present: bool) -> Truth:
    """NCCL_PROTO=LL: half the bytes are flags. The model knows no more of it either."""
    manifest = {**(loop.run.manifest or {}), "environment": {"NCCL_PROTO": "LL"}}
    loop.run.manifest = manifest if present else loop.run.manifest
    _reduces_behind(loop, share)
    if present:
        loop.wire = lambda _, us: us + max(us - loop.latency_us, 0)
    return Truth("wrong-algorithm", also=("below-link-speed", "exposed-communication"))


def at_the_roofline(loop: Loop, share: float, present: bool) -> Truth:
    """Nothing is wrong: large operations at the link's usual speed."""
    _reduces_behind(loop, share + 0.05)
    return Truth("at-the-roofline", also=("exposed-communication",))


def impossible(loop: Loop, share: float, present: bool) -> Truth:
    """Sizes are recorded that no link could carry in the time."""
    size = size_for(loop, "all_reduce", 0.01 * loop.step_us)
    wrong = size * loop.dice.randrange(16, 64)
    us = loop.wire_us("all_reduce", size, loop.ranks)
    loop.hooks["end"].append(lambda: loop.together("broadcast", wrong, us=us, wait=True))
    return Truth("impossible-number")


def _reduces_behind(loop: Loop, share: float) -> None:
    """Two all_reduces that take that share of a step, with nothing beside them."""
    size = size_for(loop, "all_reduce", share * loop.step_us / 2)

    def reduces() -> None:
        loop.together("all_reduce", size, wait=True)
        loop.together("all_reduce", size, wait=True)

    loop.hooks["end"].append(reduces)


FAULTS = (
    Fault("below-link-speed", below_link_speed, job=_nvlink),
    Fault("degraded-link", degraded_link),
    Fault("wrong-algorithm", wrong_algorithm, job=_nvlink),
    Fault("at-the-roofline", at_the_roofline, plain, _nvlink, timed=False),
    Fault("impossible-number", impossible, timed=False),
)
