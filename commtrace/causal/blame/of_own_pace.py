"""What suspects save of steps that nobody records."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from commtrace.causal.edits.own_pace import launched_unrecorded
from commtrace.causal.edits.run_edits import step_ns
from commtrace.causal.replay.graph import Change, Lags, changed

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["OfOwnPace", "of_own_pace"]


class OfOwnPace(NamedTuple):
    """Which share of what they save as recorded they save of other steps; their median without."""

    share: float
    replayed_step_ns: int


def of_own_pace(run: Measures, lag_ns: Lags, edit: Change) -> OfOwnPace | None:
    """What an edit saves where hosts launch as fast as they do when nobody records them.

    None where it saves as much then, nobody knows such steps, or hosts compute themselves.
    """
    if launched_unrecorded(run, lag_ns) is lag_ns:
        return None
    lags = (lag_ns, changed(lag_ns, edit))
    before, after = step_ns(run, lags).T
    own_before, own_after = step_ns(run, [launched_unrecorded(run, lag) for lag in lags]).T
    share = float((own_before - own_after).sum() / max((before - after).sum(), 1))
    return OfOwnPace(max(share, 0.0), round(float(np.median(own_after)))) if share < 1 else None
