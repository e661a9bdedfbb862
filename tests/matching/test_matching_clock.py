"""Offsets come from ends alone, one clock per host unless its ranks contradict it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from commtrace.matching import Offsets, match
from commtrace.matching.clock_line import Line
from commtrace.measures import Measures
from commtrace.table import rows
from commtrace.trace_tables import PROBES

Make = Callable[..., Measures]
Clock = Callable[[float], float]
MS = 1_000_000
TIMES = (0, 7, 9, 20, 21, 35, 48, 50, 66, 70, 81, 99)


def run(
    make: Make,
    hosts: Sequence[str | None],
    ahead_ms: Sequence[float],
    gpus: Sequence[int] = (),
    **call: Any,
) -> Measures:
    """Twelve numbered operations of one millisecond, on clocks that are so far ahead."""
    size = len(hosts)
    ranks = range(size)
    everyone = ",".join(map(str, ranks))
    row = {"op": "all_reduce", "group": "0", "group_size": size, "size_bytes": 8, **call}
    return make(
        collectives=[
            {
                **row,
                "rank": rank,
                "seq": i,
                "start_ns": round((time + ahead_ms[rank]) * MS),
                "duration_ns": MS,
                **({"device": f"cuda:{gpus[rank]}"} if gpus else {}),
            }
            for rank in ranks
            for i, time in enumerate(TIMES)
        ],
        groups=[{"rank": r, "group": "0", "size": size, "ranks": everyone} for r in ranks],
        ranks=[{"rank": rank, "file": f"{rank}", "host": hosts[rank]} for rank in ranks],
    )


def clocks(trace: Measures) -> list[dict[str, Any]]:
    return match(trace).clock.dicts()


def test_a_rank_without_operations_takes_no_clock_away(make_trace: Make) -> None:
    trace = run(make_trace, ["a", "b", "c"], [0, 0, 5])
    silent = trace.collectives[trace.collectives["rank"] > 0].reset_index(drop=True)
    found = clocks(replace(trace, collectives=silent))
    assert [row["offset_ns"] for row in found] == [None, 0, 5 * MS]


def test_an_offset_is_what_to_subtract(make_trace: Make) -> None:
    trace = run(make_trace, ["a", "a", "b"], [0, 0, 5])
    first, second, third = clocks(trace)
    assert [row["offset_ns"] for row in (first, second, third)] == [0, 0, 5 * MS]
    assert [row["clock"] for row in (first, second, third)] == [0, 0, 2]
    assert [row["operations"] for row in (first, second, third)] == [0, 0, 12]
    assert first["error_ns"] == 0
    assert 0 < second["error_ns"] < third["error_ns"] < 20_000
    assert (first["at_ns"], third["at_ns"]) == (50 * MS, 55 * MS)
    assert third["drift_ppm"] is None
    times, known = match(trace).on_run_clock(np.array([5 * MS]), np.array([2]))
    assert times.tolist() == [0]
    assert known.all()


@pytest.mark.parametrize("op", ["broadcast", "reduce", "scatter", "gather"])
def test_rooted_operations_tell_nothing(make_trace: Make, op: str) -> None:
    told = clocks(run(make_trace, ["a", "b"], [0, 0.3], op=op, root=0))
    assert told[1]["offset_ns"] is None
    assert told[1]["error_ns"] is None
    assert told[1]["operations"] == 0


def test_a_rank_without_common_operations_has_its_hosts_clock(make_trace: Make) -> None:
    trace = run(make_trace, ["a", "b"], [0, 5])
    more = [
        *rows(trace.ranks),
        *({"rank": r, "file": "", "host": h} for r, h in ((2, "b"), (3, "c"))),
    ]
    trace = make_trace(collectives=rows(trace.collectives), groups=rows(trace.groups), ranks=more)
    assert [row["offset_ns"] for row in clocks(trace)] == [0, 5 * MS, 5 * MS, None]
    assert [row["clock"] for row in clocks(trace)] == [0, 1, 1, 3]


def test_ranks_of_one_host_that_contradict_a_shared_clock(make_trace: Make) -> None:
    trace = run(make_trace, ["a", "a", "a"], [0, 0, 5])
    assert [row["clock"] for row in clocks(trace)] == [0, 0, 2]
    assert [row["offset_ns"] for row in clocks(trace)] == [0, 0, 5 * MS]
    found = match(trace)
    assert (found.matches.ints("present") == 3).all()
    (note,) = found.notes
    assert (note.code, note.rank) == ("clock-disagrees", 2)


def test_gpus_whose_operations_always_end_apart_have_no_clock_in_common(make_trace: Make) -> None:
    """One of them takes so little that its end on one is before its beginning on the other."""
    trace = run(make_trace, ["a", "a"], [0, 0.2], (0, 1))
    short = rows(trace.collectives)
    for row in short:
        if row["seq"] == 3:
            row["start_ns"] += 0.9 * MS
            row["duration_ns"] = 0.1 * MS
    its = {"groups": rows(trace.groups), "ranks": rows(trace.ranks)}
    found = clocks(make_trace(collectives=short, **its))
    assert [row["offset_ns"] for row in found] == [0, 0.2 * MS]
    for row in short:
        if row["rank"] == 1 and row["seq"] % 2:
            row["duration_ns"] -= 0.05 * MS
    assert [row["clock"] for row in clocks(make_trace(collectives=short, **its))] == [0, 0]


def test_ends_that_differ_little_are_no_contradiction(make_trace: Make) -> None:
    # Within the operation nobody can say that the clocks differ: the host is believed.
    assert [row["clock"] for row in clocks(run(make_trace, ["a", "a"], [0, 0.4]))] == [0, 0]


@pytest.mark.parametrize(
    ("gpus", "ahead_ms", "clock", "offset_ms"),
    [
        ((0, 1, 0, 1), (0, 0, 5, 5), [0, 0, 2, 2], [0, 0, 5, 5]),
        ((0, 1, 2, 3), (0, 0, 0, 0), [0, 0, 0, 0], [0, 0, 0, 0]),
        ((0, 1, 0, 1), (0, 0.4, 5, 5), [0, 1, 2, 2], [0, 0.4, 5, 5]),  # no host has two clocks
        ((0, 0, 0, 0), (0, 0, 0, 0), [0, 1, 2, 3], [0, 0, 0, 0]),  # each its own, or the same
        ((1, 0, 1, 0), (0, 0, 0, 0), [0, 1, 2, 3], [0, 0, 0, 0]),
    ],
)
def test_gpus_tell_which_ranks_of_hosts_without_names_have_one_clock(
    make_trace: Make,
    gpus: Sequence[int],
    ahead_ms: Sequence[float],
    clock: list[int],
    offset_ms: list[float],
) -> None:
    found = clocks(run(make_trace, [None] * 4, ahead_ms, gpus))
    assert [row["clock"] for row in found] == clock
    assert [row["offset_ns"] for row in found] == [its * MS for its in offset_ms]


def test_lowest_rank_present_is_the_reference(make_trace: Make) -> None:
    whole = run(make_trace, ["a", "b", "c"], [1, 5, 9])
    kept = [row for row in rows(whole.collectives) if row["rank"]]
    trace = make_trace(collectives=kept, groups=rows(whole.groups)[1:], ranks=rows(whole.ranks)[1:])
    assert [(row["rank"], row["offset_ns"]) for row in clocks(trace)] == [(1, 0), (2, 4 * MS)]


def test_one_operation_leaves_much_doubt(make_trace: Make) -> None:
    whole = run(make_trace, ["a", "b"], [0, 5])
    one = [row for row in rows(whole.collectives) if row["seq"] == 3]
    trace = make_trace(collectives=one, groups=rows(whole.groups), ranks=rows(whole.ranks))
    told = clocks(trace)[1]
    assert told["offset_ns"] == 5 * MS
    assert told["error_ns"] >= MS  # as long as it took


def test_nothing_recorded(make_trace: Make) -> None:
    assert clocks(make_trace()) == []


def probes(trace: Measures, *readings: tuple[int, float, float, float]) -> Measures:
    """The same run, with readings of a rank's clock: when, how far ahead, give or take, in ms."""
    table = PROBES.of_dicts(
        [
            {"rank": rank, "at_ns": at * MS, "offset_ns": offset * MS, "error_ns": error * MS}
            for rank, at, offset, error in readings
        ]
    )
    return replace(trace, probes=table)


def test_ends_that_are_apart_every_time_do_not_outweigh_a_probe(make_trace: Make) -> None:
    trace = run(make_trace, ["a", "b"], [0, 20])
    (_, far) = clocks(trace)
    assert (far["offset_ns"], far["provenance"]) == (20 * MS, "operations")
    asked = probes(trace, (0, 0, 0, 0), (0, 99, 0, 0), (1, 0, 0.01, 0.05), (1, 99, -0.01, 0.05))
    (near, far) = clocks(asked)
    assert (far["offset_ns"], far["provenance"]) == (0, "probe")
    assert 60_000 <= far["error_ns"] < 80_000
    assert (near["offset_ns"], near["provenance"]) == (0, "host")


def test_ends_may_say_more_than_a_probe(make_trace: Make) -> None:
    trace = run(make_trace, ["a", "b"], [0, 5])
    (_, far) = clocks(probes(trace, (0, 0, 0, 0), (1, 0, 5.2, 1.0)))
    assert (far["offset_ns"], far["provenance"]) == (5 * MS, "operations")
    assert far["error_ns"] < 20_000


def test_a_clock_that_only_the_probe_knows(make_trace: Make) -> None:
    trace = run(make_trace, ["a", "b"], [0, 5], op="send")
    (_, far) = clocks(trace)
    assert far["offset_ns"] is far["provenance"] is None
    (_, far) = clocks(probes(trace, (0, 0, 0, 0), (1, 0, 5.0, 1.0)))
    assert (far["offset_ns"], far["provenance"]) == (5 * MS, "probe")


def test_a_drift_shows_in_two_readings(make_trace: Make) -> None:
    trace = run(make_trace, ["a", "b"], [0, 0], op="send")
    readings = [(0, 0, 0, 0), (0, 2000, 0, 0), (1, 0, 0, 0.01), (1, 2000, 0.06, 0.01)]
    (_, far) = clocks(probes(trace, *readings))
    assert far["drift_ppm"] == pytest.approx(30)
    assert far["offset_ns"] == pytest.approx(0.06 * MS * far["at_ns"] / (2000 * MS), abs=1)


HOUR = 3_600_000


def test_clocks_an_hour_apart_are_known_as_well(make_trace: Make) -> None:
    """Beyond the readings is what the run lasts longer: 2 ms, whatever the clocks show."""
    trace = run(make_trace, ["a", "b"], [0, HOUR], op="send")
    readings = [(0, 0, 0, 0), (0, 99, 0, 0), (1, HOUR, HOUR, 0.01), (1, HOUR + 99, HOUR, 0.01)]
    (_, far) = clocks(probes(trace, *readings))
    assert (far["offset_ns"], far["error_ns"]) == (HOUR * MS, 15_100)


def reduced(
    make: Make, shown: Sequence[Clock], pairs: list[tuple[int, int]], *, every_ms: int
) -> Measures:
    """All_reduces of one millisecond between pairs of ranks, within a minute, as clocks show it."""
    members = [(rank, pair) for pair in pairs for rank in pair]
    row = {"op": "all_reduce", "group_size": 2, "size_bytes": 8, "duration_ns": MS}
    return make(
        collectives=[
            {
                **row,
                "group": str(pair),
                "rank": rank,
                "seq": i,
                "start_ns": round(shown[rank](time) * MS),
            }
            for rank, pair in members
            for i, time in enumerate(range(0, 60_000, every_ms))
        ],
        groups=[
            {"rank": rank, "group": str(pair), "size": 2, "ranks": f"{pair[0]},{pair[1]}"}
            for rank, pair in members
        ],
        ranks=[{"rank": r, "file": f"{r}", "host": f"{r}"} for r in range(len(shown))],
    )


def test_lines_of_clocks_that_show_different_hours() -> None:
    """A is an hour and 20 ppm ahead of C, B two hours and 30 ppm."""
    hour = HOUR * MS
    a, b = Line(hour, 20e-6, hour), Line(2 * hour, 30e-6, 2 * hour)
    true = 60 * 1000 * MS  # on C's clock
    on_a, on_b = (line.level_ns + true + line.slope * true for line in (a, b))
    moment = np.array([round(on_b)])
    b_of_a = b.less(a)
    assert b_of_a(moment) == pytest.approx(on_b - on_a, abs=100)
    assert b_of_a.plus(a)(moment) == pytest.approx(on_b - true, abs=100)


def test_the_run_is_where_its_ranks_are_whatever_rank_0_shows(make_trace: Make) -> None:
    """Rank 0 recorded no operation, and its clock is an hour behind the others."""
    whole = run(make_trace, ["a", "b", "c"], [0, HOUR, HOUR], op="send")
    kept = [row for row in rows(whole.collectives) if row["rank"]]
    trace = make_trace(collectives=kept, groups=rows(whole.groups), ranks=rows(whole.ranks))
    readings = [(r, HOUR * (r > 0) + at, HOUR * (r > 0), 0.01) for r in range(3) for at in (0, 99)]
    near, *others = clocks(probes(trace, *readings))
    assert near["at_ns"] == 50 * MS
    for far in others:
        assert (far["offset_ns"], far["error_ns"]) == (HOUR * MS, 25_100)


@pytest.mark.parametrize("offset", [0, 5, HOUR])
def test_a_probe_and_the_ends_agree_on_a_clock_that_drifts(make_trace: Make, offset: int) -> None:
    """By 20 ppm; the probe, off by 80 µs here and there, does not outweigh the ends."""
    shown = (lambda t: t, lambda t: offset + t * (1 + 20e-6))
    trace = reduced(make_trace, shown, [(0, 1)], every_ms=500)
    readings = [
        (1, shown[1](0), offset + 0.08, 0.1),
        (1, shown[1](60_000), offset + 60_000 * 20e-6 - 0.08, 0.1),
    ]
    (_, far) = clocks(probes(trace, (0, 0, 0, 0), (0, 60_000, 0, 0), *readings))
    assert far["provenance"] == "operations"
    assert far["error_ns"] < 20_000


@pytest.mark.parametrize("short_s", [0.9, 1.2])
def test_a_probe_too_short_for_a_drift_is_off_by_no_more_than_it_says(
    make_trace: Make, short_s: float
) -> None:
    """Rank 0's readings span so long, those of rank 1, which drifts by 40 ppm, more."""
    span = 1_200
    shown = (lambda t: t, lambda t: HOUR + t * (1 + 40e-6))
    trace = run(make_trace, ["a", "b"], [0, HOUR], op="send")
    readings = [
        (0, 0, 0, 0),
        (0, short_s * 1_000, 0, 0),
        *((1, shown[1](at), HOUR + at * 40e-6, 0.01) for at in (0, span)),
    ]
    trace = probes(trace, *readings)
    offsets = match(trace).clock
    times = np.array([0, round(shown[1](100) * MS)])
    on_clock, _ = Offsets.of(offsets).on_run_clock(times, np.arange(2))
    assert abs(on_clock[1] - 100 * MS) <= offsets.ints("error_ns")[1]


@pytest.mark.parametrize("offset", [5, HOUR])
def test_a_clock_through_another_that_drifts(make_trace: Make, offset: int) -> None:
    """Rank 1's is 20 ppm faster than the others and shows another hour."""
    shown = (lambda t: t, lambda t: offset + t * (1 + 20e-6), lambda t: t)
    trace = reduced(make_trace, shown, [(0, 1), (1, 2)], every_ms=1_000)
    offsets = match(trace).clock
    times = np.array([round(shown[r](30_000) * MS) for r in range(3)])
    on_clock, _ = Offsets.of(offsets).on_run_clock(times, np.arange(3))
    assert on_clock == pytest.approx(np.full(3, 30_000 * MS), abs=2_000)
    assert offsets.ints("error_ns").max() < 30_000


def test_what_cpus_did_bounds_a_clock_by_causality_only(make_trace: Make) -> None:
    """Each operation lasts 1 ms on both clocks: it may be 1 ms off, and nobody could tell."""
    (_, far) = clocks(run(make_trace, ["a", "b"], [0, 20], device="cpu"))
    assert (far["offset_ns"], far["error_ns"]) == (20 * MS, MS)


def test_gpus_alone_tie_no_clocks(make_trace: Make) -> None:
    """Two pairs of ranks that share no operation with each other."""
    trace = run(make_trace, [None] * 4, [0] * 4, gpus=range(4))
    of_pair = (trace.collectives["rank"] < 2) == (trace.collectives["seq"] < 6)
    apart = replace(trace, collectives=trace.collectives[of_pair].reset_index(drop=True))
    assert [row["clock"] for row in clocks(apart)] == [0, 1, 2, 3]


def test_messages_of_gpus_tie_clocks_that_nothing_else_does(make_trace: Make) -> None:
    """A pipeline of two hosts: the second's clock is 5 ms ahead, and each waits in its recvs."""
    rng = np.random.default_rng(0)
    began = np.cumsum(rng.uniform(2, 9, 12)) * MS
    calls = [
        {
            "op": op,
            "group": "pp",
            "group_size": 2,
            "size_bytes": 1 << 24,
            "rank": rank,
            "peer": 1 - rank,
            "start_ns": round(start - early + 5 * MS * rank),
            "duration_ns": round(MS + early),
        }
        for i, start in enumerate(began)
        for rank, op, early in (
            (i % 2, "send", 0.0),
            (1 - i % 2, "recv", rng.uniform(0, MS)),
        )
    ]
    trace = make_trace(
        collectives=sorted(calls, key=lambda its: (its["rank"], its["start_ns"])),
        groups=[{"rank": rank, "group": "pp", "size": 2, "ranks": "0,1"} for rank in (0, 1)],
        ranks=[{"rank": rank, "file": f"{rank}", "host": "ab"[rank]} for rank in (0, 1)],
    )
    found = match(trace)
    assert found.matches.ints("present").tolist() == [2] * 24
    assert [row["offset_ns"] for row in found.clock.dicts()] == [0, pytest.approx(5 * MS, abs=10)]
