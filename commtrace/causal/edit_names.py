"""What edits there are: apart from what makes them, which loads libraries."""

from __future__ import annotations

from commtrace.comms import OPERATIONS

__all__ = ["EDITS", "beginnings"]

EDITS = {
    "even": "all ranks do each segment of their own work in their mean time",
    "rank=R:typical": "rank R does each segment in the time that is typical of the other ranks",
    "host=H:typical": "so do all ranks of host H",
    "link=A-B:50GB/s": "messages between the ranks A and B run at that bandwidth",
    "OP:dtype=bfloat16": "OP (all_reduce, …) sends elements of that type",
    "no-wait:OP": "nobody waits for OP before its step ends",
    "remove:OP": "OP is not called",
}
"""How each edit is written, and what it means."""


def beginnings() -> list[str]:
    """What edits can begin with, as far as it is known without a run."""
    ops = [f"{edit}:{op}" for edit in ("no-wait", "remove") for op in OPERATIONS]
    return ["even", "rank=", "host=", "link=", *ops, *(f"{op}:dtype=" for op in OPERATIONS)]
