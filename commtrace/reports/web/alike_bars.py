"""Groups of ranks that behave alike, each as a bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commtrace.reports.content import alike
from commtrace.reports.web.bars import Bar, Part, bars, legend
from commtrace.reports.web.markup import Markup, tag
from commtrace.units import clean, counted, cut, duration

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["alike_bars"]

_LETTERS = 24
_KINDS = ("compute", "transfer", "wait", "idle")
_SAID = {"transfer": "exposed transfer", "wait": "exposed waiting"}


def alike_bars(run: Measures) -> Markup | None:
    """A bar for each group, the largest on top; None where ranks are few."""
    groups = alike.groups(run)
    if not groups:
        return None
    drawn = [_bar(row, groups[0]) for row in groups]
    longest = max(sum(part.length for part in bar.parts) for bar in drawn)
    return tag(
        "figure",
        tag("figcaption", "Ranks that behave alike"),
        legend(
            kind
            for kind in _KINDS
            if any(part.kind == kind and part.length for bar in drawn for part in bar.parts)
        ),
        bars(drawn, longest, "groups of ranks that behave alike"),
        tag("p", " ".join(alike.footer(run)), class_="hint"),
    )


def _bar(row: dict[str, Any], first: dict[str, Any]) -> Bar:
    wait = min(row["exposed_wait_ns"] or 0, row["exposed_communication_ns"])
    lengths = {
        "compute": row["compute_ns"],
        "transfer": row["exposed_communication_ns"] - wait,
        "wait": wait,
        "idle": row["idle_ns"],
    }
    where = f" ({clean(row['place'], _LETTERS)})" if row["place"] else ""
    value = counted(row["count"], "rank")
    if row["differs_in"]:
        value += f": {alike.difference(row, first)}"
    return Bar(
        f"rank{'s' * (row['count'] > 1)} {cut(alike.who(row), _LETTERS)}{where}",
        [
            Part(kind, time, f"{_SAID.get(kind, kind)} {duration(time)}")
            for kind, time in lengths.items()
        ],
        value,
    )
