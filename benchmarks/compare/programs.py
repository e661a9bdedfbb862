"""Recorded programs: each round's recording with a fault against that without."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.compare.pairs import Answer, Kept, Truth, compared
from benchmarks.programs.program import Fault, Program

__all__ = ["Judged", "alarms", "faults", "rounds"]


@dataclass(frozen=True)
class Judged:
    """One comparison: of what, what is true, and what is said."""

    name: str
    truth: Truth
    answer: Answer


def alarms(
    programs: list[Program], its: Mapping[Path, Kept], folder: Path, count: int
) -> list[Judged]:
    """Clean recordings of different rounds, both ways."""
    return [
        Judged(
            f"{before.name} → {after.name}",
            Truth(step_ns=0.0),
            compared([its[before]], [its[after]]),
        )
        for program in programs
        for before, after in itertools.permutations(_of(program, "none", folder, count), 2)
        if before in its and after in its
    ]


def faults(
    programs: list[Program], its: Mapping[Path, Kept], folder: Path, count: int
) -> Iterator[Judged]:
    """One recording a side, both of one round."""
    for program in programs:
        for fault in program.faults:
            clean, faulty = (
                _of(program, "none", folder, count),
                _of(program, fault.name, folder, count),
            )
            for before, after in zip(clean, faulty, strict=True):
                if before in its and after in its:
                    answer = compared([its[before]], [its[after]])
                    yield Judged(after.name, _truth(fault, [its[after]]), answer)


def rounds(
    programs: list[Program], its: Mapping[Path, Kept], folder: Path, count: int
) -> Iterator[Judged]:
    """All rounds a side, which were recorded in turn."""
    for program in programs:
        for fault in program.faults:
            sides = [
                [its[path] for path in _of(program, kind, folder, count) if path in its]
                for kind in ("none", fault.name)
            ]
            if min(map(len, sides)) == count:
                answer = compared(*sides)
                yield Judged(f"{program.name}-{fault.name}", _truth(fault, sides[1]), answer)


def _of(program: Program, fault: str, folder: Path, count: int) -> list[Path]:
    return [folder / f"{program.name}-{fault}-{number}" for number in range(1, count + 1)]


def _truth(fault: Fault, faulty: list[Kept]) -> Truth:
    steps = [its.recording.steps for its in faulty]
    hit = [sum(fault.at is None or step in fault.at for step in each) / len(each) for each in steps]
    share = sum(hit) / len(hit)
    delay = None if fault.delay_ms is None else 1e6 * fault.delay_ms * share
    op = "" if fault.ranks or not fault.rules or fault.name == "turns" else fault.place
    return Truth(fault.ranks, op, delay, once=share == 0)
