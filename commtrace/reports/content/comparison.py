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
from commtrace.reports.content.tables import Section, more
from commtrace.units import NOTHING, clean, counted, duration

if TYPE_CHECKING:
    from commtrace.analysis import Summary
    from commtrace.comparing.compared import Compared
    from commtrace.diagnosis import Finding

__all__ = ["bars", "findings", "headline", "sections", "summary", "title", "why"]

_SHOWN = 10
_FOOTER = (
    "change: what the step is longer by, along the critical path; less than the difference where "
    "that is hidden behind others."
)
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
    named = [row for row in table if _sure(row)][:_NAMED]
    if not named:
        most = f"; the largest is {_part(table[0])}" if table else ""
        return f"Of {_signed(change)} per step no single part is beyond chance{most}."
    left = change - sum(row["change_ns"] for row in named)
    largest = table[0] not in named
    rest = f", of which {_part(table[0])} is not beyond chance" if largest else ""
    return (
        f"Of {_signed(change)} per step: {'; '.join(map(_part, named))}; "
        f"{_signed(left)} all else{rest}."
    )


def _part(row: dict[str, Any]) -> str:
    return f"{_signed(row['change_ns'])} {name_of(row)}{_where(row)}"


def _where(row: dict[str, Any]) -> str:
    parts = [
        *([f"before {clean(row['place'], 40)}"] if row["place"] else []),
        *([f"mostly {kernel_of(row, 40)}"] if row["kernel"] else []),
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _other_counts(compared: Compared) -> str | None:
    """The operations of which a step has more or fewer."""
    table = [row for row in rows_of(compared, compared.operations) if _other_count(row)]
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


def _sure(row: dict[str, Any]) -> bool:
    low: int = row["low_ns"]
    high: int = row["high_ns"]
    return low > 0 or high < 0


def sections(compared: Compared) -> Iterator[Section]:
    """The tables that have something to say."""
    if len(compared.changes):
        yield _changes(compared)
    counts = [row for row in rows_of(compared, compared.operations) if _other_count(row)]
    if counts:
        yield _counts(counts)
    if len(compared.outlying):
        yield _outlying(rows_of(compared, compared.outlying))
    kernels = [row for row in compared.kernels.dicts() if row["base_ns"] != row["candidate_ns"]]
    if kernels:
        yield _kernels(kernels)


def _changes(compared: Compared) -> Section:
    step = compared.step
    table = [
        row for row in rows_of(compared, compared.changes) if row["base_ns"] or row["candidate_ns"]
    ]
    shown = table[:_SHOWN]
    hidden = sum(row["change_ns"] for row in table[_SHOWN:])
    cells = [
        [
            name_of(row) + (" †" if _sure(row) else ""),
            duration(row["base_ns"]),
            duration(row["candidate_ns"]),
            _signed(row["change_ns"]),
            _range(row["low_ns"], row["high_ns"]),
        ]
        for row in shown
    ]
    nothing = [NOTHING] * 2
    if table[_SHOWN:]:
        cells.append([f"{len(table) - _SHOWN} more", *nothing, _signed(hidden), ""])
    cells.append(["rest", *nothing, _signed(compared.rest_ns), ""])
    change = (step.candidate_ns or 0) - (step.base_ns or 0)
    times = [duration(step.base_ns), duration(step.candidate_ns)]
    cells.append(["step", *times, _signed(change), _interval(compared)])
    return Section(
        "What a step's change is made of",
        (
            ("part", "<"),
            ("base", ">"),
            ("candidate", ">"),
            ("change", ">"),
            ("interval", "<"),
        ),
        cells,
        (
            _FOOTER,
            "† beyond chance, corrected for the number of rows.",
        ),
        ("base", "candidate"),
    )


def _interval(compared: Compared) -> str:
    step = compared.step
    if step.base_ns is None or step.low_pct is None or step.high_pct is None:
        return ""
    low, high = (step.base_ns * pct / 100 for pct in (step.low_pct, step.high_pct))
    return _range(low, high)


def _range(low_ns: float, high_ns: float) -> str:
    """An interval, both ends in one unit.

    >>> _range(-1_200, 15_000_000)
    '-0.00 to +15.0 ms'
    """
    most = max(abs(low_ns), abs(high_ns))
    unit, per = next(((u, p) for u, p in _UNITS if most >= p), _UNITS[-1])
    return f"{_digits(low_ns / per)} to {_digits(high_ns / per)} {unit}"


_UNITS = (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0))


def _digits(value: float) -> str:
    decimals = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:+.{decimals}f}"


def _other_count(row: dict[str, Any]) -> bool:
    before: float = row["base_count"]
    after: float = row["candidate_count"]
    return abs(after - before) > 0.1 * max(before, after)


def _counts(table: list[dict[str, Any]]) -> Section:
    return Section(
        "Operations that a step has more or fewer of",
        (
            ("operation", "<"),
            ("dtype", "<"),
            ("base", ">"),
            ("candidate", ">"),
            ("transfer,\nbase", ">"),
            ("transfer,\ncandidate", ">"),
            ("", "<"),
        ),
        [
            [
                operation_of(row),
                clean(row["dtype"], 16),
                f"{row['base_count']:g}",
                f"{row['candidate_count']:g}",
                duration(row["base_ns"]),
                duration(row["candidate_ns"]),
                "" if row["base_count"] and row["candidate_count"] else _NEW[not row["base_count"]],
            ]
            for row in table[:_SHOWN]
        ],
        tuple(more(len(table), _SHOWN)),
        ("dtype", "transfer,\nbase", "transfer,\ncandidate"),
    )


_NEW = {True: "appeared", False: "disappeared"}


def _outlying(table: list[dict[str, Any]]) -> Section:
    return Section(
        "Steps that are not counted",
        (("step", "<"), ("", "<"), ("duration", ">"), ("more", ">"), ("mostly", "<")),
        [
            [
                _step_of(row),
                row["reason"],
                duration(row["duration_ns"]),
                _signed(row["more_ns"]),
                _mostly(row),
            ]
            for row in table[:_SHOWN]
        ],
        tuple(more(len(table), _SHOWN)),
    )


def _step_of(row: dict[str, Any]) -> str:
    recording = f" {row['recording']}" if row["recording"] > 1 else ""
    return f"{row['side']}{recording}, step {row['step']}"


def _mostly(row: dict[str, Any]) -> str:
    if row["kind"] is None:
        return NOTHING
    return name_of({**row, "dimension": None, "size_bytes": None, "base_size_bytes": None})


def _kernels(table: list[dict[str, Any]]) -> Section:
    return Section(
        "Kernels and operators that take longer or shorter, in a step of the mean rank",
        (("name", "<"), ("count", ">"), ("base", ">"), ("candidate", ">"), ("change", ">")),
        [
            [
                work_of(row),
                f"{row['base_count']:g} → {row['candidate_count']:g}",
                duration(row["base_ns"]),
                duration(row["candidate_ns"]),
                _signed(row["candidate_ns"] - row["base_ns"]),
            ]
            for row in table[:_NAMED]
        ],
        tuple(more(len(table), _NAMED)),
        ("count",),
    )


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


def _signed(time_ns: float) -> str:
    """A change, with its sign.

    >>> _signed(1_500_000), _signed(-2_000), _signed(0)
    ('+1.50 ms', '-2.00 µs', '0')
    """
    its = round(time_ns)
    return f"{'+' if its > 0 else '-' if its < 0 else ''}{duration(abs(its))}"


def _pct(value: float) -> str:
    return f"{value:+.1f} %"
