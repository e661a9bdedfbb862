"""The faults that gloo can show, each with the settings that make it and those that do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["CASES", "Case"]

Settings = Mapping[str, str]


@dataclass(frozen=True)
class Case:
    """A workload that has one fault, and not with other settings.

    ``ranks`` must be named, None for no certain one. ``once`` is a fault of the first step
    alone. ``gain`` tells whether removing it changes nothing else, so that the time it
    cost is known. ``stays`` are rules that are right to fire without it, too.
    """

    name: str
    rule: str
    workload: str
    fault: Settings
    without: Settings
    world_size: int = 2
    ranks: tuple[int, ...] | None = None
    once: bool = False
    gain: bool = True
    stays: tuple[str, ...] = ()
    both: Settings = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Its name and how many ranks it has."""
        return f"{self.name}, {self.world_size} ranks"

    def settings(self, *, fault: bool) -> dict[str, str]:
        """What is set in a recording with the fault, or without."""
        return {"iterations": "12", **self.both, **(self.fault if fault else self.without)}


def _late(name: str, world_size: int = 2, **both: str) -> Case:
    return Case(
        name,
        "straggler",
        "late_rank",
        {"delay_ms": "6"},
        {"delay_ms": "0"},
        world_size,
        (1,),
        both=both,
    )


def _rooted(rule: str, op: str, late: str, world_size: int = 2) -> Case:
    settings = {"op": op, "late": late}, {"op": op, "late": "nobody"}
    return Case(f"{op}, {late} late", rule, "rooted", *settings, world_size, (0,))


def _message(rule: str, late: str, rank: int) -> Case:
    return Case(f"{late} late", rule, "messages", {"late": late}, {"late": "nobody"}, ranks=(rank,))


def _hidden(name: str, rule: str, wait: str) -> Case:
    return Case(name, rule, "hidden", {"wait": wait}, {"wait": "behind"})


def _composed(way: str, world_size: int = 2) -> Case:
    settings = {"way": way}, {"way": "all_reduce"}
    return Case(way, "decomposed-all-reduce", "composed", *settings, world_size)


def _inflated(world_size: int) -> Case:
    settings = {"way": "inflated"}, {"way": "reduce_scatter + all_gather"}
    true = ("decomposed-all-reduce",)
    return Case("inflated bytes", "byte-inflation", "composed", *settings, world_size, stays=true)


def _needless(name: str, needless: str) -> Case:
    settings = {"needless": needless}, {"needless": "nothing"}
    # A barrier costs as much as a small operation, and nothing beside a large one.
    elements = "1000" if needless == "barriers" else "1000000"
    return Case(name, "redundant", "needless", *settings, both={"elements": elements})


def _disagree(name: str, fault: str, world_size: int) -> Case:
    settings = {"fault": fault}, {"fault": "nothing"}
    both = {"iterations": "2"}
    return Case(
        name, "desync", "disagree", *settings, world_size, (1,), once=True, gain=False, both=both
    )


CASES = (
    _late("host stalls"),
    _late("host stalls", 4),
    _late("more compute", stalls="no"),
    Case(
        "each late in turn",
        "jitter",
        "late_rank",
        {"slow_rank": "-1"},
        {"slow_rank": "-2"},
        both={"work_ms": "4", "delay_ms": "16"},
    ),
    _rooted("late-root", "broadcast", "root"),
    _rooted("late-root", "broadcast", "root", 4),
    _rooted("early-root", "reduce", "others"),
    _message("late-sender", "sender", 0),
    _message("late-receiver", "receiver", 1),
    Case(
        "first use of a group",
        "cold-start",
        "first_use",
        {"warm": "no"},
        {"warm": "yes"},
        once=True,
        # The first costs half a millisecond: steps have to be short, and all show their all_reduce.
        stays=("exposed-communication",),
        both={"iterations": "4"},
    ),
    _hidden("wait right behind async_op", "false-overlap", "at_once"),
    _hidden("synchronous, compute behind", "exposed-communication", "synchronous"),
    Case("small messages", "latency-bound", "small", {"joined": "no"}, {"joined": "yes"}),
    _composed("reduce + broadcast"),
    _composed("reduce_scatter + all_gather"),
    _inflated(2),
    _inflated(4),
    Case(
        "accumulation without no_sync",
        "redundant",
        "accumulate",
        {"no_sync": "no"},
        {"no_sync": "yes"},
    ),
    _needless("needless barriers", "barriers"),
    _needless("reduced twice", "twice"),
    Case(
        "few micro-batches",
        "pipeline-bubble",
        "stages",
        {"micro_batches": "2"},
        {"micro_batches": "8"},
        stays=("pipeline-bubble",),
    ),
    Case("queued behind others", "head-of-line", "queued", {}, {"own_group": "yes"}),
    _disagree("swapped order", "order", 2),
    _disagree("swapped order", "order", 4),
    _disagree("another type", "dtype", 4),
)
