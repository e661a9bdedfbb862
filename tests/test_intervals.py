"""Interval sets obey the laws of sets, nanosecond by nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from commtrace.intervals import (
    Intervals,
    Places,
    covered,
    intersect,
    shaded,
    subtract,
    total,
    union,
    united,
)

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(-3, 20)), max_size=12)


def points(intervals: list[tuple[int, int]]) -> set[int]:
    return {t for start, length in intervals for t in range(start, start + length)}


def merged(intervals: list[tuple[int, int]]) -> Intervals:
    return union([s for s, _ in intervals], [s + length for s, length in intervals])


def points_of(intervals: Intervals) -> set[int]:
    starts, ends = intervals
    assert (starts[1:] > ends[:-1]).all(), "sorted and disjoint, touching ones joined"
    assert (ends > starts).all()
    return {t for s, e in zip(starts.tolist(), ends.tolist(), strict=True) for t in range(s, e)}


@given(pairs)
def test_union_holds_every_point_once(a: list[tuple[int, int]]) -> None:
    assert points_of(merged(a)) == points(a)
    assert total(merged(a)) == len(points(a))


@given(pairs, pairs)
def test_intersection_and_difference_are_those_of_sets(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    assert points_of(intersect(merged(a), merged(b))) == points(a) & points(b)
    assert points_of(subtract(merged(a), merged(b))) == points(a) - points(b)


@given(pairs, pairs)
def test_covered_counts_the_points_of_each_interval(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    inside = covered([s for s, _ in a], [s + length for s, length in a], merged(b))
    assert inside.tolist() == [len(points([one]) & points(b)) for one in a]


def test_unix_nanoseconds_stay_exact() -> None:
    now = 1_795_173_453_478_587_894
    joined = union([now, now + 5], [now + 5, now + 9])
    assert (joined[0].tolist(), joined[1].tolist()) == ([now], [now + 9])
    assert joined[0].dtype == np.int64


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 20)), min_size=1))
def test_sets_of_many_places_are_each_place_s_own(events: list[tuple[int, int, int]]) -> None:
    number = {place: at for at, place in enumerate(dict.fromkeys(place for place, _, _ in events))}
    place = np.asarray([number[place] for place, _, _ in events])
    start = np.asarray([start for _, start, _ in events])
    places = Places(place, start, start + np.asarray([length for _, _, length in events]))
    one = places.union(place, start, start + np.asarray([length for _, _, length in events]))
    found = list(zip(*(column.tolist() for column in places.apart(one)), strict=True))
    for its, at in number.items():
        alone = merged([(start, length) for of, start, length in events if of == its])
        assert [(s, e) for p, s, e in found if p == at] == list(
            zip(*(column.tolist() for column in alone), strict=True)
        )
        assert places.totals(one)[at] == total(alone)


def test_a_pixel_is_the_lighter_the_less_of_it_something_ran() -> None:
    ran = union([0, 50, 52, 54, 90], [20, 51, 53, 55, 100])
    first, last, opacity = shaded(ran, 0, 100, 10)
    assert [*zip(first.tolist(), last.tolist(), opacity.tolist(), strict=True)] == [
        (0, 2, 1.0),
        (5, 6, 0.1 + 0.9 * 3 / 8),  # 3 ns of 10
        (9, 10, 1.0),
    ]
    assert shaded(union([1], [2]), 0, 100_000, 10)[2].tolist() == [0.1 + 0.9 / 8]
    assert not shaded(union([], []), 0, 100, 10)[0].size
    first, last, _ = shaded(union([0], [500]), 0, 500, 1000)  # more pixels than nanoseconds
    assert (first.tolist(), last.tolist()) == ([0], [1000])


@given(st.lists(pairs, max_size=3))
def test_united_holds_what_any_holds(sets: list[list[tuple[int, int]]]) -> None:
    assert points_of(united(*map(merged, sets))) == set().union(*map(points, sets))
