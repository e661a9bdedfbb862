"""Somebody is late, and others wait."""

from __future__ import annotations

import random

from benchmarks.faults.case import Fault, Truth
from benchmarks.faults.loop import Loop

__all__ = ["FAULTS"]


def straggler(loop: Loop, share: float, present: bool) -> Truth:
    """One rank has more to compute in each backward pass."""
    slow = loop.dice.randrange(loop.ranks)
    more = share * loop.step_us * present
    loop.hooks["backward"].append(lambda: loop.busy(slow, more, "imbalance"))
    return Truth("straggler", (slow,), also=("device-late", "exposed-communication"))


def device_late(loop: Loop, share: float, present: bool) -> Truth:
    """One rank's device runs all its kernels more slowly."""
    slow = loop.dice.randrange(loop.ranks)
    loop.speed[slow] *= 1 + share * present
    return Truth("device-late", (slow,), also=("straggler", "exposed-communication"))


def host_late(loop: Loop, share: float, present: bool) -> Truth:
    """One rank's host waits for its data before each step, and its device with it."""
    slow = loop.dice.randrange(loop.ranks)
    loop.host_leads = False
    stall = share * loop.step_us * present
    loop.hooks["input"].append(lambda: loop.stall(slow, stall))
    return Truth("host-late", (slow,), also=("straggler", "launch-gap", "exposed-communication"))


def jitter(loop: Loop, share: float, present: bool) -> Truth:
    """Each step, chance gives some ranks more to do. Without: all get the step's mean."""
    excess = sum(1 / k for k in range(2, loop.ranks + 1))  # of the largest of n exponentials
    scale = share * loop.step_us / excess

    def varies() -> None:
        chance = random.Random(f"{loop.seed}:jitter:{loop.number}")
        more = [chance.expovariate(1 / scale) for _ in loop.everyone]
        mean = sum(more) / len(more)
        for rank in loop.everyone:
            loop.busy(rank, more[rank] if present else mean, "input")

    loop.hooks["backward"].append(varies)
    return Truth("jitter", also=("exposed-communication",))


def late_root(loop: Loop, share: float, present: bool) -> Truth:
    """A broadcast in each step, whose root prepares what it sends while the others wait."""
    root = loop.dice.randrange(loop.ranks)
    late = share * loop.step_us * present

    def sends() -> None:
        loop.busy(root, late, "prepares")
        loop.together("broadcast", 4_000_000, root=root, wait=True)

    loop.hooks["end"].append(sends)
    return Truth("late-root", (root,), also=("exposed-communication",))


def early_root(loop: Loop, share: float, present: bool) -> Truth:
    """The root collects before it does its own share of work. Without: after it.

    While it works, the others wait for it in the next all_reduce: it is a straggler as well, and
    of two ranks each is late in turn.
    """
    root = loop.dice.randrange(loop.ranks)
    work = share * loop.step_us

    def collects() -> None:
        for rank in loop.everyone:
            if rank != root or not present:
                loop.busy(rank, work, "evaluation")
        loop.together("reduce", 4_000_000, root=root, wait=True)
        if present:
            loop.busy(root, work, "evaluation")

    loop.hooks["end"].append(collects)
    also = ("straggler", "device-late", "jitter", "exposed-communication")
    return Truth("early-root", (root,), also=also)


FAULTS = (
    Fault("straggler", straggler),
    Fault("device-late", device_late),
    Fault("host-late", host_late),
    Fault("jitter", jitter),
    Fault("late-root", late_root),
    Fault("early-root", early_root),
)
