"""The run is fine, its recording is not."""

# ruff: noqa: ARG001 - all faults are called alike
from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.faults.case import Fault, Truth
from benchmarks.faults.loop import Loop
from commtrace.diagnosis import Note
from commtrace.measures import Measures
from commtrace.trace_tables import TABLES

__all__ = ["FAULTS"]


def truncated(loop: Loop, share: float, present: bool) -> Truth:
    """A file breaks off."""
    rank = loop.dice.randrange(loop.ranks)
    loop.run.notes.append(Note("truncated", "the JSON breaks off", rank, f"rank{rank}.json"))
    return Truth("unfit-trace", (rank,), "broke off")


def missing(loop: Loop, share: float, present: bool) -> Truth:
    """A rank left no file."""
    lost = loop.dice.randrange(loop.ranks)

    def without(trace: Measures) -> Measures:
        tables = {table.name: getattr(trace, table.name) for table in TABLES}
        kept = {name: its[its["rank"] != lost] for name, its in tables.items()}
        left: dict[str, Any] = {name: its.reset_index(drop=True) for name, its in kept.items()}
        return replace(trace, **left)

    loop.edits.append(without)
    return Truth("unfit-trace", (), "no trace file")


def orphaned(loop: Loop, share: float, present: bool) -> Truth:
    """Launches were dropped."""
    lost = loop.dice.uniform(0.06, 0.3)

    def dropped(trace: Measures) -> Measures:
        gone = [loop.dice.random() < lost for _ in range(len(trace.kernels))]
        launch = trace.kernels["launch_ns"].mask(gone)
        return replace(trace, kernels=trace.kernels.assign(launch_ns=launch))

    loop.edits.append(dropped)
    return Truth("unfit-trace", (), "lack their launch")


def premature(loop: Loop, share: float, present: bool) -> Truth:
    """One rank's GPU clock is behind its host's."""
    rank = loop.dice.randrange(loop.ranks)
    behind = round(loop.dice.uniform(15_000_000, 40_000_000))

    def shifted(trace: Measures) -> Measures:
        launch = trace.kernels["launch_ns"] + behind * (trace.kernels["rank"] == rank)
        return replace(trace, kernels=trace.kernels.assign(launch_ns=launch.astype("Int64")))

    loop.edits.append(shifted)
    return Truth("unfit-trace", (rank,), "before their launch")


FAULTS = tuple(
    Fault("unfit-trace", inject, timed=False)
    for inject in (truncated, missing, orphaned, premature)
)
