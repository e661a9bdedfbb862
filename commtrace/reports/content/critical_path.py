"""Where the steps' time goes, as the reports for people say it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.causal.replayable import replayable
from commtrace.causal.steps import path_of
from commtrace.reports.content.tables import Section
from commtrace.units import duration, percent

if TYPE_CHECKING:
    import pandas as pd

    from commtrace.measures import Measures

__all__ = ["section", "sentence", "shares"]

_SHOWN = 8
_SMALL, _LONG = 0.005, 0.05  # of the path


def sentence(run: Measures) -> str | None:
    """What is on the critical path of a step; None where it is not known for sure.

    It is not where too many waits are not in the trace: they would count as a host's own work.
    """
    path = path_of(run) if replayable(run) else None
    if path is None or path.empty:
        return None
    of_step = " of a step" if run.steps["step"].notna().any() else ""
    return f"Critical path{of_step}: {shares(path)}."


def shares(path: pd.DataFrame) -> str:
    """The kinds of a path, the longest first, those below half a percent left out.

    Of transfers also the operations, if several have a twentieth of the path.
    """
    whole = int(path["time_ns"].sum())
    ops = _of(path[path["kind"] == "transfer"], "op", _LONG * whole)
    named = ", ".join(f"{op} {percent(time, whole)}" for op, time in ops)
    return ", ".join(
        f"{percent(time, whole)} {kind}"
        + (f" ({named})" if kind == "transfer" and len(ops) > 1 else "")
        for kind, time in _of(path, "kind", _SMALL * whole)
    )


def _of(path: pd.DataFrame, column: str, least_ns: float) -> list[tuple[str, int]]:
    times = path.groupby(column, observed=True)["time_ns"].sum().sort_values(ascending=False)
    return [
        (str(name), time)
        for name, time in zip(times.index.tolist(), times.tolist(), strict=True)
        if time >= least_ns
    ]


def section(path: pd.DataFrame, title: str, steps: int) -> Section:
    """How long each rank did what on the critical path, in the mean of so many steps."""
    by = path.pivot_table(
        index="rank", columns="kind", values="time_ns", aggfunc="sum", fill_value=0, observed=True
    )
    kinds = [str(kind) for kind in by.columns]
    by["sum"] = by.sum(axis=1)
    longest = by.sort_values("sum", ascending=False).head(_SHOWN).sort_index()
    lines = [(str(rank), longest.loc[rank]) for rank in longest.index.tolist()]
    if len(by) > 1:
        lines.append(("all", by.sum()))
    footer = ["transfer: all ranks were there; launch: from call to start; host: no operator ran."]
    if len(by) > len(longest):
        footer.insert(0, f"The {_SHOWN} ranks with most of it.")
    return Section(
        title,
        (("rank", ">"), *((kind, ">") for kind in kinds), ("sum", ">")),
        [
            [name, *(duration(round(int(row[kind]) / steps)) for kind in (*kinds, "sum"))]
            for name, row in lines
        ],
        tuple(footer),
    )
