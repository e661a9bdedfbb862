"""Laws of nesting and matching, and metadata of any shape."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from commtrace.nesting import begun_within, enclosing, outermost
from commtrace.reader.json.events import Arguments, Call
from commtrace.reader.nest import Nest

SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def calls(spans: list[tuple[int, int]]) -> list[Call]:
    return [Call("cpu_op", "c10d::send", 1, start, dur, Arguments()) for start, dur in spans]


@given(SPANS, st.integers(0, 30))
def test_around_finds_all_that_are_open_latest_start_first(
    spans: list[tuple[int, int]], time: int
) -> None:
    found = [(c.start_ns, c.duration_ns) for c in Nest(calls(spans)).around(time)]
    is_open = [(s, d) for s, d in spans if s <= time < s + d or s == time]
    assert sorted(found) == sorted(is_open)
    assert [s for s, _ in found] == sorted((s for s, _ in found), reverse=True)


@given(SPANS, SPANS)
def test_the_outermost_cover_all_and_do_not_overlap(
    one: list[tuple[int, int]], two: list[tuple[int, int]]
) -> None:
    rows = [(1, *span) for span in one] + [(2, *span) for span in two]
    thread, start, duration = np.asarray(rows, dtype=np.int64).reshape(-1, 3).T
    top = outermost(thread, start, duration)
    for number in (1, 2):
        its = top & (thread == number)
        ends = (start + duration)[its]
        order = np.argsort(start[its], kind="stable")
        assert (start[its][order][1:] >= np.maximum.accumulate(ends[order])[:-1]).all()
    for row in np.flatnonzero(~top):
        assert any(
            start[o] <= start[row] < start[o] + duration[o]
            for o in np.flatnonzero(thread == thread[row])
            if o != row
        )


@given(SPANS, SPANS)
def test_what_encloses_an_event_is_the_last_that_is_open_when_it_begins(
    one: list[tuple[int, int]], two: list[tuple[int, int]]
) -> None:
    rows = [(1, *span) for span in one] + [(2, *span) for span in two]
    thread, start, duration = np.asarray(rows, dtype=np.int64).reshape(-1, 3).T
    found = enclosing(thread, start, duration)
    order = np.lexsort((-duration, start, thread)).tolist()
    for at, row in enumerate(order):
        is_open = [
            other
            for other in order[:at]
            if thread[other] == thread[row] and start[other] + duration[other] > start[row]
        ]
        assert found[row] == (is_open[-1] if is_open else -1)


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.sampled_from([10, 20]))))
def test_no_work_is_lost_or_counted_twice(
    read: Any, events: Any, trace: list[tuple[bool, int, int]]
) -> None:
    found = read(
        [
            events.op("c10d::allreduce_", ts, 1, **events.shaped([[[n]]], ["TensorList"]))
            if is_call
            else events.note("gloo:all_reduce", ts, 1, 50, **events.shaped([[n]], ["float"]))
            for is_call, ts, n in trace
        ]
    )
    works = sorted((ts * 1000, n * 4) for is_call, ts, n in trace if not is_call)
    assert sorted((r["start_ns"], r["size_bytes"]) for r in found.collectives) == works
    assert all((r["launch_ns"] or 0) <= r["start_ns"] for r in found.collectives)


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=50)
@given(st.dictionaries(st.sampled_from(["rank", "pg_config", "backend", "world_size"]), JSON), JSON)
def test_metadata_of_any_shape_is_survived(
    read: Any, events: Any, info: dict[str, Any], other: Any
) -> None:
    found = read(
        [events.kernel("ncclDevKernel_SendRecv(x)", 1, 1)],
        distributedInfo=info,
        commtrace=other,
        flight_recorder=other,
    )
    assert len(found.collectives) == 1


@given(SPANS, SPANS)
def test_what_begins_within_an_event_is_counted_with_it(
    one: list[tuple[int, int]], two: list[tuple[int, int]]
) -> None:
    rows = [(1, *span) for span in one] + [(2, *span) for span in two]
    thread, start, duration = np.asarray(rows, dtype=np.int64).reshape(-1, 3).T
    order = np.lexsort((-duration, start, thread)).tolist()
    found = begun_within(thread, start, duration)
    for at, row in enumerate(order):
        within = [
            other
            for other in order[at + 1 :]
            if thread[other] == thread[row] and start[other] < start[row] + duration[row]
        ]
        assert found[row] == 1 + len(within)
