"""The program's labelled ranges side by side, as the reports for people say it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from commtrace.metrics.rank.labels import is_own
from commtrace.metrics.run.ranges import ranges
from commtrace.reports.content.tables import Section, more
from commtrace.units import NOTHING, clean, cut, duration, rate, size

if TYPE_CHECKING:
    from commtrace.analysis import Analysis
    from commtrace.table import Rows

__all__ = ["answer", "section"]

_SHOWN = 12
_WIDEST = 48
_INCOMPARABLE = 100  # times the fastest: no way to do the same
_BEST = "x best: times the fastest beside it, as ranks see it: with their waits for others. "
_FOOTER = (
    "On a GPU a range lasts until what its host launched is done. Compute, communication and bytes "
    "are means over ranges."
)
_QUANTITIES = {
    "duration_ns_p50": ("Median time", duration),
    "host_ns_p50": ("The host's median time", duration),
    "compute_ns": ("Compute", duration),
    "exposed_communication_ns": ("Exposed communication", duration),
    "overlapped_communication_ns": ("Overlapped communication", duration),
    "size_bytes": ("Bytes communicated", size),
}


def section(labelled: Rows) -> Section | None:
    """The program's own labels, those that took longest; None where it has none."""
    own = [row for row in labelled.dicts() if is_own(row["label"])]
    if not own:
        return None
    depths = _depths(own)
    longest = sorted(own, key=lambda row: -row["count"] * row["duration_ns_p50"])[:_SHOWN]
    shown = [i for i, row in enumerate(own) if any(row is one for one in longest)]
    compared = any(_is_compared(own[i]) for i in shown)
    return Section(
        "Labelled ranges",
        (
            ("label", "<"),
            ("count", ">"),
            ("p50", ">"),
            ("p95", ">"),
            *((("x\nbest", ">"),) if compared else ()),
            ("compute", ">"),
            ("exposed\ncomm.", ">"),
            ("over-\nlapped", ">"),
            ("bytes", ">"),
            ("busbw\nGB/s", ">"),
        ),
        [_range(own[i], depths[i], compared=compared) for i in shown],
        (
            *more(len(own), _SHOWN),
            (_BEST if compared else "") + _FOOTER,
        ),
        ("compute", "bytes", "count", "p95", "over-\nlapped", "exposed\ncomm."),
    )


def answer(analysis: Analysis) -> str | None:
    """The question of the workload that was recorded, with its answer.

    From the table of ranges, where the workload says from which labels; else the costliest
    finding. None where nobody asked, or nothing answers.
    """
    asked = analysis.question
    if asked is None:
        return None
    found = _compared(asked.column, asked.labels, ranges(analysis.measures).dicts())
    if found is None and analysis.verdict.faults:
        found = f"{clean(analysis.verdict.faults[0].summary, 400)}."
    return found and f"{clean(asked.text, 200)} {found}"


def _compared(column: str, labels: tuple[str, ...], table: list[dict[str, Any]]) -> str | None:
    """What the labels' ranges are in a column, and how many times the first one's."""
    values = {row["label"]: row[column] for row in reversed(table)} if column in _QUANTITIES else {}
    known = [(label, values[label]) for label in labels if values.get(label) is not None]
    if not known:
        return None
    name, shown = _QUANTITIES[column]
    first, base = known[0]
    parts = [f"{clean(first, 40)} {shown(base)}"]
    for label, value in known[1:]:
        times = f" ({_times(value / base)})" if base else ""
        parts.append(f"{clean(label, 40)} {shown(value)}{times}")
    return f"{name}: {', '.join(parts)}."


def _depths(table: list[dict[str, Any]]) -> list[int]:
    """How deep each row lies within others, which come before it."""
    depth: dict[str | None, int] = {None: -1}
    found = []
    for row in table:
        found.append(depth.get(row["parent"], -1) + 1)
        depth.setdefault(row["label"], found[-1])
    return found


def _is_compared(row: dict[str, Any]) -> bool:
    """Whether it could be one of several ways to do the same."""
    ratio = row["ratio_to_fastest"]
    return ratio is not None and ratio < _INCOMPARABLE


def _range(row: dict[str, Any], depth: int, *, compared: bool) -> list[str]:
    times = _times(row["ratio_to_fastest"]) if _is_compared(row) else NOTHING
    return [
        "  " * min(depth, 4) + cut(clean(row["label"]), _WIDEST),
        f"{row['count']:,}",
        duration(row["duration_ns_p50"]),
        duration(row["duration_ns_p95"]),
        *([times] if compared else []),
        duration(row["compute_ns"]),
        duration(row["exposed_communication_ns"]),
        duration(row["overlapped_communication_ns"]),
        size(row["size_bytes"]),
        ("≥ " if row["bound"] == "lower" else "") + rate(row["busbw_gb_s"]),
    ]


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 10 else f"{ratio:,.0f}x"
