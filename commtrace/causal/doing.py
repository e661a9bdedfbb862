"""What a late rank did while the others were on time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Doing", "doing_of"]


@dataclass(frozen=True)
class Doing:
    """What a late rank did more of, between one arrival and the next, than the others' median.

    Of the operations that it was last in, what it did less what the others did: the mean
    time in compute, in copies, with nothing running, since one thing at the start of a step
    makes it late to every operation of the step; and how much later it enqueued them, the
    median. ``launch_ns`` is None where the trace does not show.
    """

    compute_ns: float
    copy_ns: float
    idle_ns: float
    launch_ns: float | None

    def cause(self, cost_ns: float) -> str | None:
        """``compute``, ``copy`` or ``idle`` if one makes at least half of what each costs."""
        more = {"compute": self.compute_ns, "copy": self.copy_ns, "idle": self.idle_ns}
        most = max(more, key=lambda name: more[name])
        return most if more[most] >= cost_ns / 2 else None


def doing_of(segments: pd.DataFrame, rank: int, operations: pd.Series[Any]) -> Doing | None:
    """The rank's excess over the others' median in the segments before these operations."""
    every = segments[segments["operation"].isin(operations)].set_index("operation")
    its, others = every[every["rank"] == rank], every[every["rank"] != rank]
    columns = ["compute_ns", "copy_ns", "idle_ns", "launch_ns"]
    more = its[columns] - others.groupby(level=0)[columns].median()
    launch, mean = more["launch_ns"].dropna(), more[columns[:3]].mean()
    if mean.isna().any():
        return None
    return Doing(
        compute_ns=float(mean["compute_ns"]),
        copy_ns=float(mean["copy_ns"]),
        idle_ns=float(mean["idle_ns"]),
        launch_ns=float(launch.median()) if len(launch) else None,
    )
