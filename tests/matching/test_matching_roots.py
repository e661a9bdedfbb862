"""Operations with a root, which is done before the others have come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from commtrace.matching import match
from commtrace.measures import Measures

Make = Callable[..., Measures]
US = 1_000
ROOT_US, OTHER_US = (1100, 1200, 1300), (1240, 1340, 1440)  # each is nearest to another's
ALL_REDUCES_US = (0, 10_000, 23_000, 31_000)


def call(rank: int, start_us: float, op: str = "broadcast", **more: Any) -> dict[str, Any]:
    known = {"group": "0", "group_size": 2, "dtype": "float32", "size_bytes": 1024}
    times = {"start_ns": round(start_us * US), "duration_ns": 50 * US}
    return {"rank": rank, "op": op, **known, **times, **more}


def partners(make: Make, calls: list[dict[str, Any]], hosts: str = "aa") -> list[list[int]]:
    """The rows of each operation that both ranks have."""
    group = {"group": "0", "size": 2, "ranks": "0,1"}
    trace = make(
        collectives=calls,
        groups=[{"rank": rank, **group} for rank in (0, 1)],
        ranks=[{"rank": rank, "file": str(rank), "host": hosts[rank]} for rank in (0, 1)],
    )
    together: dict[int, list[int]] = {}
    for row, number in enumerate(match(trace).matches.ints("operation").tolist()):
        together.setdefault(number, []).append(row)
    return [both for both in together.values() if len(both) == 2]


@pytest.mark.parametrize("root", [0, None])
@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_a_root_that_runs_ahead_shifts_nothing(
    make_trace: Make, hosts: str, root: int | None
) -> None:
    reduced = [[call(rank, at, "all_reduce") for at in ALL_REDUCES_US] for rank in (0, 1)]
    sent = [[call(r, at, root=root) for at in (ROOT_US, OTHER_US)[r]] for r in (0, 1)]
    calls = [row for rank in (0, 1) for row in reduced[rank] + sent[rank]]
    assert partners(make_trace, calls, hosts) == [[at, at + 7] for at in range(7)]


@pytest.mark.parametrize("hosts", ["aa", "ab"])
def test_between_two_operations_of_all_its_as_many_are_its(make_trace: Make, hosts: str) -> None:
    """Though one rank's window opens late, so that the whole sequences differ."""
    reduced = [call(0, -5_000, "all_reduce")]
    reduced += [call(rank, at, "all_reduce") for rank in (0, 1) for at in ALL_REDUCES_US]
    sent = [call(r, at) for r in (0, 1) for at in (ROOT_US, OTHER_US)[r]]
    both = partners(make_trace, reduced + sent, hosts)
    assert both == [[1, 5], [2, 6], [3, 7], [4, 8], [9, 12], [10, 13], [11, 14]]


def test_what_the_root_sends_later_is_not_what_came_before(make_trace: Make) -> None:
    reduced = [call(rank, at, "all_reduce") for rank in (0, 1) for at in (0, 10_000)]
    sent = [call(0, 3_000, root=0), call(1, 2_000, root=0)]
    assert partners(make_trace, reduced + sent) == [[0, 2], [1, 3]]
    early = [call(0, 2_000, root=0), call(1, 3_000, root=0)]
    assert partners(make_trace, reduced + early) == [[0, 2], [1, 3], [4, 5]]


def test_where_all_have_a_root_their_place_alone_is_not_enough(make_trace: Make) -> None:
    times = [1_000 * at * at for at in range(1, 13)]
    calls = [call(0, at, root=0) for at in times[:-1]] + [call(1, at, root=0) for at in times[1:]]
    assert partners(make_trace, calls) == [[at + 1, at + 11] for at in range(10)]


@pytest.mark.parametrize(("first", "matched"), [(0, True), (1, False)])
def test_where_all_have_a_root_their_place_in_each_step_is(
    make_trace: Make, first: int, matched: bool
) -> None:
    """Though the other comes when the root is long done; unless it counts other steps."""
    calls = [
        call(rank, 40_000 * step + 200 * part + late * rank, root=0, step=step + rank * first)
        for rank in (0, 1)
        for step, late in enumerate((5_000, 11_000, 23_000))
        for part in range(4)
    ]
    assert (partners(make_trace, calls) == [[at, at + 12] for at in range(12)]) == matched


def test_ranks_that_all_name_themselves_name_no_root(make_trace: Make) -> None:
    """As some backends record it."""
    calls = [call(rank, at, root=rank) for rank in (0, 1) for at in ALL_REDUCES_US]
    assert partners(make_trace, calls) == [[at, at + 4] for at in range(4)]
