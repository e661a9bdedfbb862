"""Communication whose size is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.diagnosis import Note

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["unsized", "unsized_per_step"]


def unsized(run: Measures) -> tuple[Note, ...]:
    """``sizes-unknown``: how much communication has a null size, and so a null bandwidth.

    A barrier has none.
    """
    sized = run.collective_columns["op"] != "barrier"
    count = int((sized & run.collective_columns["size_bytes"].isna()).sum())
    if not count:
        return ()
    message = (
        f"{count:,} of {sized.sum():,} communication events have no size, so no bandwidth: "
        "PyTorch 2.4 and later record it for NCCL, record_shapes=True for the rest"
    )
    return (Note("sizes-unknown", message),)


def unsized_per_step(run: Measures, op: str) -> float:
    """How many operations of that name and of unknown size a rank takes part in, in a step.

    The mean; 0 where no steps are labelled.
    """
    rows = run.collective_columns[["op", "size_bytes", "rank", "step"]]
    rows = rows[(rows["op"] == op) & rows["size_bytes"].isna() & rows["step"].notna()]
    steps = rows[["rank", "step"]].drop_duplicates()
    return len(rows) / max(len(steps), 1)
