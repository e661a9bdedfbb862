"""Runs with known faults, or none: what the diagnosis is judged on."""

from __future__ import annotations

from benchmarks.faults import (
    copied,
    decompositions,
    host,
    links,
    messages,
    needless,
    overlap,
    recording,
    waiting,
)
from benchmarks.faults.case import SMALLEST, Case, Fault, Truth, case
from benchmarks.faults.clean import CLEAN

__all__ = ["CLEAN", "FAULTS", "SMALLEST", "Case", "Fault", "Truth", "case"]

FAULTS: tuple[Fault, ...] = tuple(
    fault
    for family in (
        waiting,
        messages,
        overlap,
        host,
        decompositions,
        needless,
        links,
        copied,
        recording,
    )
    for fault in family.FAULTS
)
"""Every fault, family by family."""
