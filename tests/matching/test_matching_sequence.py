"""What two ranks tell of one operation, to the nanosecond where it turns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commtrace.matching.clock_line import Line
from commtrace.matching.collective_arrays import Collectives
from commtrace.matching.match_by_id import _counts_differently
from commtrace.matching.sequence import MARGIN_NS, Part, Sequence

FIRST = (1_000_000, 2_000_000)


def rows_with(**columns: Any) -> Collectives:
    """All that is asked of the rows here."""
    return Collectives(**{**dict.fromkeys(Collectives.__struct_fields__), **columns})  # type: ignore[arg-type]


def part(*spans: tuple[int, int]) -> Part:
    start, end = np.asarray(spans, dtype=np.int64).T
    at = np.arange(start.size)
    all_for_all = dict.fromkeys(("awaited", "awaits"), np.ones(start.size, dtype=np.bool_))
    rows = rows_with(start=start, end=end, called=start, step=np.zeros_like(at), **all_for_all)
    return Part(rows, at, np.zeros_like(at))


def after(*parts: Part) -> Sequence:
    """One operation, of which each part tells."""
    sequence = Sequence()
    for each in parts:
        sequence.add(each, np.zeros(1, dtype=np.int64), Line(0.0))
    return sequence


def test_the_last_arrival_and_the_first_end_are_kept() -> None:
    for spans in ([(0, 100), (40, 90), (20, 95)], [(20, 95), (40, 90), (0, 100)]):
        sequence = after(*(part(span) for span in spans))
        assert (sequence.arrived.tolist(), sequence.time.tolist()) == ([40], [90])


@pytest.mark.parametrize(
    ("span", "possible"),
    [
        ((2_000_000 + MARGIN_NS, 3_000_000), True),
        ((2_000_000 + MARGIN_NS + 1, 3_000_000), False),
        ((0, 1_000_000 - MARGIN_NS), True),
        ((0, 1_000_000 - MARGIN_NS - 1), False),
    ],
)
def test_nobody_is_done_before_all_have_come(span: tuple[int, int], possible: bool) -> None:
    """But for what the clocks may be off."""
    found = np.zeros(1, dtype=np.int64)
    causal = after(part(FIRST))._possible(part(span), found, Line(0.0))
    assert causal.tolist() == [possible]


@pytest.mark.parametrize(("both", "agreed", "differ"), [(3, 0, False), (4, 0, True), (4, 3, False)])
def test_four_numbers_of_which_two_disagree_show_another_count(
    both: int, agreed: int, differ: bool
) -> None:
    a, b = np.arange(both), both + np.arange(both)
    number = np.concatenate((a, np.where(a < agreed, a, b)))
    rows = rows_with(
        seq_key=np.concatenate((a, a)),
        synchronises=np.ones(2 * both, dtype=np.bool_),
        start=np.zeros(2 * both, dtype=np.int64),
        end=np.ones(2 * both, dtype=np.int64),
        rank=np.repeat([0, 1], both),
        clock_of={0: 0, 1: 0},
    )
    assert _counts_differently(rows, number, a, b) == differ
