"""In which gap of a host a call was waited for."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from commtrace.arrays import Int64, nth
from commtrace.causal.run.calls import Calls, calls
from commtrace.causal.run.joins import Gaps, joins
from commtrace.synthetic import BASE_NS, Tiny

US = 1_000


def gaps(*spans: tuple[float, float]) -> Gaps:
    """Gaps of the only thread, in µs from the start."""
    times = BASE_NS + np.rint(np.asarray(spans).reshape(-1, 2) * US).astype(np.int64)
    return Gaps(np.zeros(len(spans), np.int64), times[:, 0], times[:, 1])


def called(
    *each: tuple[float, float], op: str = "all_reduce", asynchronous: int | None = 1
) -> Calls:
    """Rank 0's calls, from launch to end; rank 1 arrives with it."""
    run = Tiny(2, backend="gloo")
    for launch, end in each:
        for rank in range(2):
            run.collective(
                rank,
                op,
                launch + 10,
                end - launch - 10,
                size=4096,
                asynchronous=asynchronous,
                thread=1,
                launch_ns=BASE_NS + round(launch * US),
                **({"peer": 1 - rank} if op in ("send", "recv") else {}),
            )
    every = calls(run.trace())
    return every.taken(every.rank == 0)


def places(its: Calls) -> Int64:
    return np.zeros(its.rank.size, np.int64)


def found(its: Calls, there: Gaps) -> list[int]:
    return joins(its, places(its), there).tolist()


def test_a_blocking_call_is_waited_for_where_it_was_called() -> None:
    its = called((100, 900), asynchronous=0)
    assert found(its, gaps((100, 905), (950, 960))) == [0]


def test_an_asynchronous_call_is_waited_for_where_long_gaps_end_with_it() -> None:
    starts = np.arange(6) * 10_000
    its = called(*((at, at + 6_000) for at in starts))
    waits = [(at + 3_000, at + 6_010) for at in starts]
    assert found(its, gaps(*waits)) == [0, 1, 2, 3, 4, 5]


def test_ends_that_lie_anywhere_in_gaps_are_no_waits() -> None:
    starts = np.arange(6) * 10_000
    its = called(*((at, at + 2_000 + 1_100 * i) for i, at in enumerate(starts)))
    between = [(at + part, at + part + 900) for at in starts for part in range(0, 10_000, 1_000)]
    assert found(its, gaps(*between)) == [-1] * 6


def test_a_gap_that_ended_shortly_before_a_late_note_was_the_wait() -> None:
    starts = np.arange(6) * 10_000
    its = called(*((at, at + 6_000) for at in starts))
    spans = [span for at in starts for span in ((at + 1_000, at + 5_900), (at + 5_980, at + 6_020))]
    assert found(its, gaps(*spans)) == [0, 2, 4, 6, 8, 10]


def test_what_is_usually_waited_for_at_once_is_so_where_its_end_is_noted_in_a_later_gap() -> None:
    """gloo's thread notes the end when the host's is off its core."""
    at = [20_000 * step for step in range(8)]
    its = called(*((start, start + (6_000 if start % 80_000 else 9_000)) for start in at))
    waits = [(start, start + (6_040 if start % 80_000 else 6_500)) for start in at]
    later = [(start + 8_850, start + 9_050) for start in at if start % 80_000 == 0]
    there = sorted([*waits, *later])
    assert found(its, gaps(*there)) == [there.index(wait) for wait in waits]


def test_a_long_gap_that_ends_with_it_has_waited_for_it_though_others_wait_at_once() -> None:
    at = [50_000 * step for step in range(8)]
    its = called(*((start, start + (6_000 if start else 39_950)) for start in at))
    waits = [(start, start + 6_040) for start in at]
    there = sorted([*waits, (6_300, 40_000)])
    assert found(its, gaps(*there)) == [1, *range(2, 9)]


def test_much_may_have_run_between_a_wait_and_a_late_note() -> None:
    starts = np.arange(6) * 10_000
    its = called(*((at, at + (5_890 if at == 20_000 else 5_010)) for at in starts))
    waits = [(at + 1_000, at + 5_000) for at in starts]
    ran = [(25_010 + 15 * i, 25_018 + 15 * i) for i in range(60)]
    spans = sorted([*waits, *ran])
    assert found(its, gaps(*spans)) == [spans.index(wait) for wait in waits]


def test_a_message_is_noted_when_its_thread_has_waited() -> None:
    starts = np.arange(6) * 10_000
    its = called(*((at, at + 300) for at in starts), op="send")
    assert found(its, gaps(*((at + 100, at + 9_000) for at in starts))) == [0, 1, 2, 3, 4, 5]


def test_nothing_is_waited_for_without_gaps() -> None:
    assert found(called((0, 100)), gaps()) == [-1]


def test_gaps_begin_anew_at_calls() -> None:
    whole = gaps((0, 100), (200, 300))
    at = np.asarray([30, 60, 150, 200]) * US + BASE_NS
    cut = Gaps.cut(whole.place, whole.start_ns, whole.end_ns, np.zeros(4, np.int64), at)
    spans = np.stack((cut.start_ns - BASE_NS, cut.end_ns - BASE_NS)) // US
    assert spans.T.tolist() == [[0, 30], [30, 60], [60, 100], [200, 300]]


def test_the_nth_of_equal_ones() -> None:
    assert nth(np.asarray([7, 3, 7, 7, 3])).tolist() == [0, 0, 1, 2, 1]


def one_blocks(*done_us: float) -> list[list[int]]:
    """Where calls are waited for whose last has ``async_op=False``: six steps of them."""
    starts = np.arange(6) * 20_000
    its = called(*((at + 10 * i, at + done) for at in starts for i, done in enumerate(done_us)))
    last = np.arange(its.rank.size) % len(done_us) == len(done_us) - 1
    its = replace(its, asynchronous=np.where(last, 0, 1))
    there = gaps(*((at + 40, at + max(done_us) + 10) for at in starts))
    return np.asarray(found(its, there)).reshape(6, -1).T.tolist()


def test_what_is_done_while_a_blocking_call_is_waited_for_may_not_be_awaited() -> None:
    assert one_blocks(5_900, 6_005, 6_000) == [[-1] * 6, [-1] * 6, [0, 1, 2, 3, 4, 5]]


def test_what_is_done_long_behind_a_blocking_call_is_awaited_too() -> None:
    assert one_blocks(5_900, 3_000)[0] == [0, 1, 2, 3, 4, 5]
