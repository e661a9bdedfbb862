"""A comparison's tables: what a step's change is made of, and what else a step has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from commtrace.reports.content.compared_names import name_of, operation_of, rows_of, work_of
from commtrace.reports.content.tables import Section, more
from commtrace.units import NOTHING, clean, duration

if TYPE_CHECKING:
    from commtrace.comparing.compared import Compared

__all__ = ["has_other_count", "is_sure", "sections", "signed"]

_SHOWN = 10
_KERNELS = 3
_FOOTER = (
    "change: what the step is longer by, along the critical path; less than the difference where "
    "that is hidden behind others."
)


def sections(compared: Compared) -> Iterator[Section]:
    """The tables that have something to say."""
    if len(compared.changes):
        yield _changes(compared)
    counts = [row for row in rows_of(compared, compared.operations) if has_other_count(row)]
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
            name_of(row) + (" †" if is_sure(row) else ""),
            duration(row["base_ns"]),
            duration(row["candidate_ns"]),
            signed(row["change_ns"]),
            _range(row["low_ns"], row["high_ns"]),
        ]
        for row in shown
    ]
    nothing = [NOTHING] * 2
    if table[_SHOWN:]:
        cells.append([f"{len(table) - _SHOWN} more", *nothing, signed(hidden), ""])
    cells.append(["rest", *nothing, signed(compared.rest_ns), ""])
    change = (step.candidate_ns or 0) - (step.base_ns or 0)
    times = [duration(step.base_ns), duration(step.candidate_ns)]
    cells.append(["step", *times, signed(change), _interval(compared)])
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
                signed(row["more_ns"]),
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
                signed(row["candidate_ns"] - row["base_ns"]),
            ]
            for row in table[:_KERNELS]
        ],
        tuple(more(len(table), _KERNELS)),
        ("count",),
    )


def has_other_count(row: dict[str, Any]) -> bool:
    """Whether a step has a tenth more or fewer of an operation."""
    before: float = row["base_count"]
    after: float = row["candidate_count"]
    return abs(after - before) > 0.1 * max(before, after)


def is_sure(row: dict[str, Any]) -> bool:
    """Whether a part's change is beyond chance."""
    low: int = row["low_ns"]
    high: int = row["high_ns"]
    return low > 0 or high < 0


def signed(time_ns: float) -> str:
    """A change, with its sign.

    >>> signed(1_500_000), signed(-2_000), signed(0)
    ('+1.50 ms', '-2.00 µs', '0')
    """
    its = round(time_ns)
    return f"{'+' if its > 0 else '-' if its < 0 else ''}{duration(abs(its))}"
