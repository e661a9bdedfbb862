"""Groups of ranks that behave alike, as the reports for people say it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commtrace.metrics.run.alike_ranks import alike_ranks
from commtrace.reports.content.tables import Section, more
from commtrace.units import NOTHING, clean, counted, cut, duration, numbered, percent

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["difference", "footer", "groups", "section", "who"]

_FEW = 16  # ranks that need no groups
_SHOWN = 12
_LETTERS = 40
_TWICE = 2.0  # what differs by more is said in time
_SAID = {
    "compute": "compute",
    "exposed_communication": "exposed comm.",
    "exposed_wait": "waiting",
    "idle": "idle",
}


def groups(run: Measures) -> list[dict[str, Any]]:
    """The rows of ALIKE_RANKS that are shown; none where ranks are few."""
    return alike_ranks(run).dicts()[:_SHOWN] if len(run.rows("ranks")) > _FEW else []


def section(run: Measures) -> Section | None:
    """What the ranks of each group have in common, and how they differ from most others."""
    shown = groups(run)
    if not shown:
        return None
    return Section(
        "Ranks that behave alike",
        (
            ("ranks", "<"),
            ("where", "<"),
            ("count", ">"),
            ("compute", ">"),
            ("exposed\ncomm.", ">"),
            ("of it\nwaiting", ">"),
            ("idle", ">"),
            ("beside the first", "<"),
        ),
        [
            [
                who(row),
                clean(row["place"], _LETTERS),
                f"{row['count']:,}",
                duration(row["compute_ns"]),
                duration(row["exposed_communication_ns"]),
                duration(row["exposed_wait_ns"]),
                duration(row["idle_ns"]),
                difference(row, shown[0]),
            ]
            for row in shown
        ],
        tuple(footer(run)),
        ("idle", "of it\nwaiting", "exposed\ncomm.", "compute", "count"),
    )


def who(row: dict[str, Any]) -> str:
    """The numbers of a group's ranks."""
    ranks = numbered("rank", [*map(int, row["ranks"].split(","))])
    return cut(ranks.partition(" ")[2], _LETTERS)


def difference(row: dict[str, Any], first: dict[str, Any]) -> str:
    """How a group differs most from the first: ``12 % more compute``."""
    part = row["differs_in"]
    if part is None:
        return NOTHING
    by, usual = row["difference_ns"], first[f"{part}_ns"]
    much = percent(abs(by), usual) if abs(by) < _TWICE * usual else duration(abs(by))
    return f"{much} {'more' if by > 0 else 'less'} {_SAID[part]}"


def footer(run: Measures) -> list[str]:
    """What else there is to say about the groups."""
    table = alike_ranks(run)
    lines = more(len(table), _SHOWN)
    if len(table) == 1:
        lines.append("No rank is apart from the others by more than 3 % of a step.")
    else:
        lines.append("Medians of a step. Groups are apart by more than 3 % of it.")
    ranks = len({*run.rows("ranks").ints("rank").tolist()})
    if unknown := ranks - int(table.ints("count").sum()):
        lines.append(f"{counted(unknown, 'rank')} in none: where their time went is unknown.")
    return lines
