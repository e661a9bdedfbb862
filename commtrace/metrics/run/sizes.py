"""Communication whose size no trace tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.diagnosis import Note

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["unsized"]


def unsized(run: Measures) -> tuple[Note, ...]:
    """``sizes-unknown``: how much communication has a null size, and so a null bandwidth.

    A barrier has no size to tell.
    """
    sized = run.collectives[run.collectives["op"] != "barrier"]
    count = int(sized["size_bytes"].isna().sum())
    if not count:
        return ()
    message = (
        f"{count:,} of {len(sized):,} communication events tell no size, so no bandwidth: "
        "PyTorch 2.4 and later tell it of NCCL, record_shapes=True of the rest"
    )
    return (Note("sizes-unknown", message),)
