"""What may be off, by hand: every margin and sign of a clock's error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commtrace.matching.clock_line import LINE_OPERATIONS, Line, fit
from commtrace.matching.collective_arrays import Collectives
from commtrace.matching.ends import Ends, InCommon
from commtrace.matching.probes import Probed, _through
from commtrace.matching.rank_clocks import (
    END_ERROR_NS,
    RankClock,
    _behind,
    _believed,
    _causal,
    _contradict,
    _link,
    _probed,
    _row,
)

S = 1_000_000_000


def ends(*spans: tuple[int, int], first: int = 0) -> Ends:
    start, end = np.asarray(spans, dtype=np.int64).T
    number = first + np.arange(start.size)
    return Ends(number, start, end, np.zeros(start.size, dtype=np.bool_))


def rows_from(start: int, end: int, **more: Any) -> Collectives:
    """All that is asked of the rows here: one rank's span."""
    span = {"rank": np.zeros(1, dtype=np.int64), "start": np.array([start]), "end": np.array([end])}
    blank = dict.fromkeys(Collectives.__struct_fields__)
    return Collectives(**{**blank, **span, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(("drifts", "error_ns"), [(False, 10_100), (True, 100)])
def test_a_drift_that_is_not_told_is_doubt(drifts: bool, error_ns: int) -> None:
    """10 ppm of the 1 s from the middle of the run to its ends are 10 µs."""
    row = _row(1, RankClock(1, Line(0.0, 10e-6), drifts, 100.0), 0, 2 * S)
    assert (row["error_ns"], row["at_ns"], row["offset_ns"]) == (error_ns, S, 10_000)
    assert row["drift_ppm"] == (pytest.approx(10) if drifts else None)


@pytest.mark.parametrize(("late_ns", "impossible"), [(10_000, False), (10_001, True)])
def test_one_clock_is_denied_beyond_10_us(late_ns: int, impossible: bool) -> None:
    a, b = ends((0, 1_000)), ends((1_000 + late_ns, 50_000))
    assert _contradict(a, b) == _contradict(b, a) == impossible


@pytest.mark.parametrize(
    ("near", "fewest", "found"),
    [(0, 1, [0, 5]), (5, 1, [0, 5, 7]), (5, 2, [0, 5]), (5, 4, []), (8, 1, [8]), (9, 1, [])],
)
def test_clocks_are_compared_that_saw_the_same(near: int, fewest: int, found: list[int]) -> None:
    """Clocks 0 and 5 share two operations, 5 and 7 one; 8 has one alone, 9 none."""
    many = [(0, 1)] * 3
    seen = {
        7: ends((0, 1), first=3),
        0: ends(*many[:2], first=1),
        5: ends(*many, first=1),
        8: ends((0, 1), first=9),
    }
    assert InCommon(seen).clocks(near, fewest) == found


@pytest.mark.parametrize(("wrong", "denied"), [(1, False), (2, True)])
def test_one_operation_in_ten_denies_no_clock(wrong: int, denied: bool) -> None:
    a = ends(*[(0, 1_000)] * 10)
    b = ends(*[(90_000, 91_000)] * wrong, *[(0, 1_000)] * (10 - wrong))
    assert _contradict(a, b) == denied


def linked(offsets_ns: list[int], every_ns: int = 1_000, took_ns: int = 70_000) -> RankClock:
    """Clock b's reading from operations, each shorter, that end so far apart on it and on a."""
    over = [took_ns + every_ns * i for i in range(len(offsets_ns))]
    spans = [(end - took_ns // (i + 1), end) for i, end in enumerate(over)]
    a = ends(*spans)
    b = ends(*((s + d, e + d) for (s, e), d in zip(spans, offsets_ns, strict=True)))
    return _link(rows_from(0, over[-1]), RankClock(0, Line(0.0)), a, b)


def test_few_operations_doubt_by_three_times_the_farthest() -> None:
    """Of 7, one is 1 µs off the others; of 8 the spread is known from themselves: 0."""
    few, enough = linked([0] * 6 + [1_000]), linked([0] * 7 + [1_000])
    assert few.error_ns == pytest.approx(END_ERROR_NS + 3_000, abs=10)
    assert enough.error_ns == pytest.approx(END_ERROR_NS, abs=10)


def test_two_operations_doubt_by_how_long_the_longer_took() -> None:
    """They may agree by chance; three do not."""
    two, three = linked([0] * 2), linked([0] * 3)
    assert two.error_ns == pytest.approx(END_ERROR_NS + 70_000, abs=10)
    assert three.error_ns == pytest.approx(END_ERROR_NS, abs=10)


def test_a_drift_needs_operations_and_a_second() -> None:
    many, gap = [0] * LINE_OPERATIONS, S // (LINE_OPERATIONS - 1) + 1
    assert linked(many, gap).drifts
    assert not linked(many, gap // 2).drifts
    assert not linked(many[1:], 2 * gap).drifts


def test_forty_operations_are_a_line() -> None:
    times = 100 * np.arange(LINE_OPERATIONS)
    assert fit(times, times // 100).slope == pytest.approx(0.01)
    assert fit(times[1:], times[1:] // 100).slope == 0


def test_what_ends_together_has_no_slope() -> None:
    """Nor has it an infinite one."""
    times = np.zeros(LINE_OPERATIONS, dtype=np.int64)
    assert fit(times, np.arange(LINE_OPERATIONS)).slope == 0


@pytest.mark.parametrize(("offset", "error"), [(0, 130), (50, 80), (100, 130)])
def test_causality_bounds_from_both_sides(offset: int, error: int) -> None:
    """a from 0 to 100, b from 70 to 130: b may be from 30 behind a to 130 ahead of it."""
    a, b = ends((0, 100)), ends((70, 130))
    one = np.zeros(1, dtype=np.intp)
    assert _causal(a, b, one, one, Line(float(offset))) == error


@pytest.mark.parametrize(("offset", "source"), [(150.0, "operations"), (151.0, "probe")])
def test_ends_are_believed_within_both_errors(offset: float, source: str) -> None:
    ours = RankClock(1, Line(offset), error_ns=50.0, provenance="operations")
    bound = RankClock(1, Line(0.0), error_ns=100.0, provenance="probe")
    assert _believed(ours, bound).provenance == source


@pytest.mark.parametrize(("error_ns", "source"), [(100.0, "operations"), (101.0, "probe")])
def test_the_closer_reading_is_believed(error_ns: float, source: str) -> None:
    ours = RankClock(1, Line(0.0), error_ns=error_ns, provenance="operations")
    bound = RankClock(1, Line(0.0), error_ns=100.0, provenance="probe")
    assert _believed(ours, bound).provenance == source


@pytest.mark.parametrize(("near", "link"), [(True, False), (False, True)])
def test_through_another_clock_both_drifts_have_to_be_known(near: bool, link: bool) -> None:
    by_near = RankClock(1, Line(5.0), near, 30.0)
    found = _behind(by_near, RankClock(0, Line(7.0), link, 40.0), 2)
    assert not found.drifts
    assert found.error_ns == 50  # of 30 and 40, which are independent
    assert found.line == Line(12.0)


@pytest.mark.parametrize(("ours", "theirs"), [(True, False), (False, True)])
def test_between_two_probes_both_drifts_have_to_be_known(ours: bool, theirs: bool) -> None:
    """Rank 0's clock is 30 ahead of what both were asked for, rank 1's 70; errors add up."""
    probes = {
        0: Probed(Line(30.0), ours, 100.0, -S, S),
        1: Probed(Line(70.0), theirs, 200.0, -S, S),
    }
    found = _probed(rows_from(0, 1_000, probes=probes), {0: 0, 1: 1}, probes, 0, 1)
    assert found is not None
    assert (found.drifts, found.line) == (False, Line(40.0))
    assert found.error_ns == 100 + 200 + END_ERROR_NS


@pytest.mark.parametrize(
    ("span", "error_ns"),
    [((0, 2 * S), 100), ((-S, 2 * S), 50_100), ((0, 3 * S), 50_100), ((S, S), 100)],
)
def test_beyond_its_readings_a_probe_drifts(span: tuple[int, int], error_ns: float) -> None:
    """By 50 ppm at most: 50 µs in a second."""
    assert Probed(Line(0.0), True, 100.0, 0, 2 * S).error_over(span) == pytest.approx(error_ns)


def test_readings_that_span_less_than_a_second_are_off_by_half_of_what_they_differ() -> None:
    """At 1000 and 2000 of its own, which is 300 and 500 ahead: 700 and 1500 of rank 0's."""
    told = _through(np.array([1_000, 2_000]), np.array([300, 500]), np.array([10, 20]))
    assert told == Probed(Line(400.0, 0.0, 1_000), False, 120.0, 700, 1_500)
