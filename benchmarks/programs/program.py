"""What a program and its faults are, and the words with which these are declared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

__all__ = ["SCRIPTS", "Fault", "Program"]

SCRIPTS = Path(__file__).parent / "scripts"

LATE = ("straggler",)
MESSAGE = ("late-sender", "late-receiver")
STAGE = ("straggler", "late-sender", "late-receiver", "pipeline-bubble")
ROOT = ("late-root", *LATE)
NEEDLESS = ("redundant", "exposed-communication")  # communication that a better program lacks
TOO_MUCH = ("exposed-communication", "byte-inflation")

COMPUTE = ("compute",)
IDLE = ("host", None)
PYTHON = (*COMPUTE, *IDLE)  # it runs no operator of torch
LOADER = ("loader",)
SAVED = ("checkpoint", *IDLE)  # what follows torch.save is in no range of its own

EVERY_THIRD = range(4, 15, 3)


@dataclass(frozen=True)
class Fault:
    """What ``--fault NAME`` does.

    The first finding has to be of one of the ``rules`` and name just these ``ranks``; without
    rules it is right to blame nobody. ``place`` is the communication that the fault delays, and
    ``causes`` are those that are right for what the ranks did meanwhile. ``at`` are the steps in
    which it happens, as the recorder numbers them, if not in all; ``delay_ms`` is what each of
    these is delayed by, if that is known. ``turns`` are the steps of each rank, where these take
    turns: of steps that hold one's alone it is the late one. With ``link_mbit`` the fault is no
    script's: the first of the ``ranks``' hosts can send no more than that to the second's.
    """

    name: str
    rules: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    place: str = ""
    causes: tuple[str | None, ...] = ()
    delay_ms: float | None = None
    at: range | None = None
    turns: tuple[range, ...] = ()
    link_mbit: int | None = None

    def happens(self, steps: range) -> int:
        """In how many of these steps it happens."""
        return len(steps) if self.at is None else len(set(self.at) & set(steps))

    def within(self, steps: range) -> Fault:
        """What is right to say of these steps."""
        late = tuple(rank for rank, its in enumerate(self.turns) if set(its) & set(steps))
        return replace(self, rules=LATE, ranks=late, turns=()) if len(late) == 1 else self

    def mean_delay_ms(self, steps: range) -> float | None:
        """What each of these steps is delayed by in the mean, if that is known."""
        return self.delay_ms and self.delay_ms * self.happens(steps) / len(steps)


@dataclass(frozen=True)
class Program:
    """A script; ``always`` are rules that are right to report something without a fault, too.

    On several ``hosts`` these are network namespaces, with as many ranks each.
    """

    name: str
    faults: tuple[Fault, ...]
    world_size: int = 2
    always: tuple[str, ...] = ()
    hosts: int = 1

    @property
    def path(self) -> Path:
        """The script."""
        return SCRIPTS / f"{self.name}.py"

    @property
    def runs(self) -> tuple[str, ...]:
        """What ``--fault`` takes."""
        return ("none", *(fault.name for fault in self.faults))
