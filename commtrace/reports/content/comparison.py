"""What a comparison says, before a format lays it out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from commtrace.reports.content.compared_names import (
    kernel_of,
    name_of,
    operation_of,
    rows_of,
    work_of,
)
from commtrace.reports.content.compared_tables import has_other_count, is_sure, signed
from commtrace.reports.content.tables import more
from commtrace.units import clean, counted, duration

if TYPE_CHECKING:
    from commtrace.analysis import Summary
    from commtrace.comparing.compared import Compared
    from commtrace.diagnosis import Finding

__all__ = ["bars", "findings", "headline", "summary", "title", "why"]

_SHOWN = 10
_NAMED = 3
_BARS = 6
_ROUNDING = 1e-4  # of a step: less is no bar


def title(compared: Compared) -> str:
    """Both sides by name."""
    return f"{_side(compared.base)} → {_side(compared.candidate)}"


def _side(runs: tuple[Summary, ...]) -> str:
    first = clean(runs[0].name, 60)
    return first if len(runs) == 1 else f"{first} and {len(runs) - 1} more"


def headline(compared: Compared) -> str:
    """The verdict in one sentence."""
    step = compared.step
    if step.base_ns is None or step.low_pct is None or step.high_pct is None:
        return f"{compared.verdict}: {clean(compared.why, 200)}"
    return (
        f"{compared.verdict}: a step takes {duration(step.candidate_ns)} instead of "
        f"{duration(step.base_ns)}: {_pct(step.change_pct or 0)} "
        f"(95 % interval {_pct(step.low_pct)} to {_pct(step.high_pct)})"
    )


def summary(compared: Compared) -> list[str]:
    """A line each: what the verdict rests on, and what the change is made of."""
    step = compared.step
    few = compared.verdict in ("inconclusive", "same") and step.base_ns is not None
    steps = f"{step.base_steps} and {counted(step.candidate_steps, 'step')} count"
    return [
        *([f"{clean(compared.why, 200).capitalize()}."] if few else []),
        f"{steps}; how far recordings differ is {_BETWEEN[step.between]}.",
        *filter(None, [why(compared), _other_counts(compared), _other_shapes(compared)]),
    ]


_BETWEEN = {
    "measured": "measured on several of each side",
    "published": "taken from published A/A runs, as a side has only one",
}


def why(compared: Compared) -> str | None:
    """What the change is made of, as far as it is beyond chance."""
    step = compared.step
    if step.base_ns is None or step.candidate_ns is None:
        return None
    change = step.candidate_ns - step.base_ns
    table = rows_of(compared, compared.changes)
    named = [row for row in table if is_sure(row)][:_NAMED]
    if not named:
        most = f"; the largest is {_part(table[0])}" if table else ""
        return f"Of {signed(change)} per step no single part is beyond chance{most}."
    left = change - sum(row["change_ns"] for row in named)
    largest = table[0] not in named
    rest = f", of which {_part(table[0])} is not beyond chance" if largest else ""
    return (
        f"Of {signed(change)} per step: {'; '.join(map(_part, named))}; "
        f"{signed(left)} all else{rest}."
    )


def _part(row: dict[str, Any]) -> str:
    return f"{signed(row['change_ns'])} {name_of(row)}{_where(row)}"


def _where(row: dict[str, Any]) -> str:
    parts = [
        *([f"before {clean(row['place'], 40)}"] if row["place"] else []),
        *([f"mostly {kernel_of(row, 40)}"] if row["kernel"] else []),
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _other_counts(compared: Compared) -> str | None:
    """The operations of which a step has more or fewer."""
    table = [row for row in rows_of(compared, compared.operations) if has_other_count(row)]
    if not table:
        return None
    parts = [
        f"{row['candidate_count']:g} instead of {row['base_count']:g} {operation_of(row)}"
        for row in table[:_NAMED]
    ]
    rest = f" and {len(table) - _NAMED} more" if len(table) > _NAMED else ""
    return f"A step has {', '.join(parts)}{rest}."


def _other_shapes(compared: Compared) -> str | None:
    """The kernels and operators that work on other shapes."""
    table = [row for row in compared.kernels.dicts() if row["base_shape"]]
    if not table:
        return None
    rest = f" and {len(table) - _NAMED} more" if len(table) > _NAMED else ""
    return f"Other shapes: {'; '.join(map(work_of, table[:_NAMED]))}{rest}."


def findings(compared: Compared) -> Iterator[tuple[str, list[str]]]:
    """The findings that are new, resolved and remain, without those that others explain."""
    its = compared.findings
    for name, some in (
        ("New findings", its.new),
        ("Resolved findings", its.resolved),
        ("Remaining findings", its.remaining),
    ):
        if causes := [one for one in some if one.explained_by is None]:
            yield name, [*map(_finding, causes[:_SHOWN]), *more(len(causes), _SHOWN)]


def _finding(its: Finding) -> str:
    return f"{clean(its.summary, 400)} ({clean(its.rule, 40)})"


def bars(compared: Compared) -> list[tuple[str, int, int]]:
    """The waterfall: names, and from where to where each bar goes, in ns of a step."""
    step = compared.step
    if step.base_ns is None or step.candidate_ns is None:
        return []
    table = rows_of(compared, compared.changes)
    at = step.base_ns
    drawn = [("base", 0, at)]
    for row in table[:_BARS]:
        drawn.append((name_of(row), at, at + row["change_ns"]))
        at += row["change_ns"]
    if abs(step.candidate_ns - at) > _ROUNDING * step.candidate_ns:
        drawn.append(("all else", at, step.candidate_ns))
    return [*drawn, ("candidate", 0, step.candidate_ns)]


def _pct(value: float) -> str:
    return f"{value:+.1f} %"
