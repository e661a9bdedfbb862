"""The steps that do not count, and what made them long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from commtrace.comparing.sample import Own
from commtrace.comparing.sides import Recording

__all__ = ["outlying"]

_MOSTLY = 0.5  # of what it is longer: what has as much of it is named


def outlying(base: Sequence[Recording], candidate: Sequence[Recording]) -> list[dict[str, Any]]:
    """The rows of OUTLYING."""
    return [
        {"side": name, "recording": number, **row}
        for name, side in (("base", base), ("candidate", candidate))
        for number, its in enumerate(side, 1)
        for row in _rows(its)
    ]


def _rows(its: Recording) -> list[dict[str, Any]]:
    rows = []
    for at in np.flatnonzero(~its.counts).tolist():
        more = float(its.sample.step_ns[at] - its.step_ns.mean())
        beyond = {
            key: float(time[at] - time[its.counts].mean())
            for key, time in its.sample.path_ns.items()
        }
        most = max(beyond, key=lambda key: beyond[key] * more, default=None)
        if most is None or beyond[most] * more < _MOSTLY * more**2:
            most = None
        what, rank = most or (None, None)
        rows.append(
            {
                "step": its.sample.steps[at],
                "reason": "warm-up" if its.warm_up[at] else "outlying",
                "duration_ns": int(its.sample.step_ns[at]),
                "more_ns": round(more),
                "kind": what.kind if what else None,
                "rank": rank,
                "cause": what.cause if isinstance(what, Own) else None,
                "op": None if what is None or isinstance(what, Own) else what.operation.op,
            }
        )
    return rows
