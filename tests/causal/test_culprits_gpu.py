"""Who delays a run whose ranks communicate on GPUs, and how much, against what it really costs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from benchmarks.diagnosis import SMALLEST
from benchmarks.faults import CLEAN, FAULTS, Case, case
from benchmarks.faults.loop import Loop
from commtrace.arrays import NULL
from commtrace.causal.blame.culprits import culprits, evened
from commtrace.causal.rank.device_work import rank_tables
from commtrace.causal.rank.unrecorded import with_waits
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.whatif import whatif
from commtrace.causal.work.segments import DEVICES, own_work
from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny


def generated(rule: str, seed: int) -> Case:
    return case(seed, next(fault for fault in FAULTS if fault.rule == rule), smallest=0.1)


def unrecorded(run: Measures) -> Measures:
    return replace(run, blocking_calls=run.blocking_calls.iloc[:0])


def at(us: float) -> int:
    return BASE_NS + round(us * 1e3)


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    ("rule", "cause"),
    [
        ("straggler", "compute"),
        ("device-late", "compute"),
        ("host-late", "host"),
        ("late-root", "compute"),
    ],
)
def test_the_rank_is_named_with_what_it_costs_and_why(
    rule: str, cause: str, recorded: bool
) -> None:
    it = generated(rule, 1)
    truth = it.truths[0]
    first = culprits(it.trace if recorded else unrecorded(it.trace), 0.05).found[0]
    assert (first.ranks, first.cause, first.persistent) == (truth.ranks, cause, True)
    assert first.saved_ns == pytest.approx(1e3 * truth.gain_us, rel=0.1)  # type: ignore[operator]


@pytest.mark.parametrize("rule", ["late-sender", "late-receiver"])
def test_ranks_that_call_differently_lack_no_work_in_the_first_step(rule: str) -> None:
    """A receiver's work is behind its recv: what precedes its first one is no measure."""
    it = generated(rule, 1)
    first = culprits(it.trace, 0.05).found[0]
    assert first.ranks == it.truths[0].ranks
    steps = first.steps_ns[:-1]  # a receiver's last work delays nobody
    assert steps[0] == pytest.approx(np.median(steps), rel=0.5)


@pytest.mark.parametrize("seed", [3, 9])
def test_who_is_last_in_some_steps_by_chance_is_no_culprit(seed: int) -> None:
    it = generated("jitter", seed)
    assert culprits(it.trace, 0.05).found == ()
    assert evened(it.trace, 0.05).sum() == pytest.approx(1e3 * it.truths[0].gain_us, rel=0.05)  # type: ignore[operator]


@pytest.mark.parametrize("hosts_wait", [False, True])
def test_ranks_of_which_each_has_more_to_do_than_the_next_are_one_culprit(hosts_wait: bool) -> None:
    """Of 1 to 8 ms; without one the next is awaited, and in the mean it is 4.5 ms.

    Hosts that launch late for as long share no work: each of these is told by itself.
    """
    run = Tiny(ranks=8)
    for step in range(6):
        begun = 10_000 * step
        for rank in range(8):
            more = 1_000 * (rank + 1)
            run.step(rank, step, begun, 10_000)
            launch = begun + more if hosts_wait else begun + 10
            run.kernel(rank, launch, 10 if hosts_wait else more)
            run.collective(
                rank,
                "all_reduce",
                begun + 20 + more,
                9_000 - more,
                size=1 << 26,
                launch_ns=at(launch + 5),
            )
    named = culprits(run.trace(), 0.05).found
    if hosts_wait:
        assert [its.ranks for its in named] == [(7,), (6,), (5,), (4,)]
        return
    (its,) = named
    assert (its.ranks, its.cause, its.graded) == ((4, 5, 6, 7), "compute", True)
    assert its.saved_ns / 1e6 == pytest.approx(6 * (8 - 4.5), rel=0.05)
    (first, *_) = diagnose(run.trace()).findings
    assert (first.rule, first.cost_ns) == ("straggler", its.saved_ns)
    assert "computing more than the other ranks" in first.summary
    assert "zig-zag" in first.advice


def test_a_stair_is_one_culprit_though_one_of_its_hosts_is_late_besides() -> None:
    run = Tiny(ranks=8)
    for step, rank in product(range(6), range(8)):
        begun, more = 10_000 * step, 1_000 * (rank + 1)
        run.step(rank, step, begun, 10_000)
        launch = begun + (4_500 if rank == 6 else 10)
        run.kernel(rank, launch + 5, begun + more - launch, launch_ns=at(launch))
        called = {"size": 1 << 26, "launch_ns": at(launch + 5)}
        run.collective(rank, "all_reduce", begun + 20 + more, 9_000 - more, **called)
    (its,) = culprits(run.trace(), 0.05).found
    assert (its.ranks, its.graded) == ((4, 5, 6, 7), True)
    assert its.saved_ns / 1e6 == pytest.approx(6 * (8 - 4.5), rel=0.1)


@pytest.mark.parametrize(
    ("works_ms", "named"),
    [
        ((1, 3, 5, 7), [(2, 3)]),  # of four only two are late beside the others: yet all are stairs
        ((2, 2, 5, 8), [(3,), (2,)]),
        ((2, 5, 8), [(2,), (1,)]),  # of three ranks two may well be late
    ],
)
def test_so_are_two_of_four_where_all_are_stairs(
    works_ms: tuple[int, ...], named: list[tuple[int, ...]]
) -> None:
    run = Tiny(ranks=len(works_ms))
    for step, (rank, its) in product(range(6), enumerate(works_ms)):
        begun, more = 10_000 * step, 1_000 * its
        run.step(rank, step, begun, 10_000)
        run.kernel(rank, begun + 10, more)
        called = {"launch_ns": at(begun + 15)}
        run.collective(rank, "all_reduce", begun + 20 + more, 9_000 - more, size=1 << 26, **called)
    assert [its.ranks for its in culprits(run.trace(), 0.05).found] == named


@pytest.mark.parametrize("is_stair", [True, False])
def test_ranks_of_each_group_are_a_stair(is_stair: bool) -> None:
    """Two rings of contexts, of which each rank takes 1 ms longer than the one before; or by 4."""
    run = Tiny(ranks=16)
    rings = [(*range(first, first + 4), *range(first + 8, first + 12)) for first in (0, 4)]
    run.groups = {"0": tuple(range(16)), **{f"cp:{nth}": its for nth, its in enumerate(rings)}}
    for step, nth, place in product(range(6), range(2), range(8)):
        rank, begun = rings[nth][place], 10_000 * step
        more = 1_000 * (1 + (place if is_stair else 4 * (place // 4)))
        run.step(rank, step, begun, 10_000)
        run.kernel(rank, begun + 10, more)
        its = {"launch_ns": at(begun + 15), "group": f"cp:{nth}", "size": 1 << 26}
        run.collective(rank, "all_reduce", begun + 20 + more, 9_000 - more, **its)
        run.collective(rank, "all_reduce", begun + 9_100, 100, size=1 << 26)
    found = culprits(run.trace(), 0.05).found
    assert [its.graded for its in found] == [is_stair]


def in_turn(late: Sequence[Collection[int]], *, computes: bool) -> Finding:
    """In each step some of four ranks take 4 ms longer: their hosts, or their GPUs."""
    run = Tiny(ranks=4)
    for step, rank in product(range(len(late)), range(4)):
        begun = 10_000 * step
        more = 4_000 * (rank in late[step])
        run.step(rank, step, begun, 10_000)
        launch, takes = (begun, 1_000 + more) if computes else (begun + more, 1_000)
        run.kernel(rank, launch + 10, takes, launch_ns=at(launch))
        arrival = begun + more + 1_020
        run.collective(
            rank,
            "all_reduce",
            arrival,
            begun + 9_000 - arrival,
            size=1 << 26,
            launch_ns=at(launch + 5),
        )
    (its,) = diagnose(run.trace(), select=["jitter"]).findings
    return its


@pytest.mark.parametrize(("computes", "each_ms"), [(False, 4), (True, 3)])
def test_pauses_in_turn_vanish_and_work_in_turn_is_shared(computes: bool, each_ms: float) -> None:
    its = in_turn([[step % 4] for step in range(8)], computes=computes)
    assert its.cost_ns / 1e6 == pytest.approx(8 * each_ms, rel=0.05)
    assert ("if none of them paused" in its.summary) is not computes
    assert ("launch-gap" in (its.explains or ())) is not computes


def test_where_most_pause_in_one_step_that_is_not_typical_of_it() -> None:
    its = in_turn([[0], [1], [1, 2, 3], [2], [3], [0], [1], [2]], computes=False)
    assert its.cost_ns / 1e6 == pytest.approx(8 * 4, rel=0.05)


def test_delays_in_different_places_are_named_one_by_one() -> None:
    """One alone saves a third of the other, so that neither is the only one; they add up."""
    run = Tiny(ranks=4)
    for step in range(6):
        for rank in range(4):
            begun = 5_200 * step
            run.step(rank, step, begun, 5_200)
            for at, us, until in (
                (begun + 50, 1_000 + 1_500 * (rank == 0), begun + 2_660),
                (begun + 2_662, 1_000 + 500 * (rank == 2), begun + 4_270),
            ):
                run.kernel(rank, at, us, launch_ns=BASE_NS + 1_000 * begun)
                launched = {"launch_ns": BASE_NS + 1_000 * (begun + 10)}
                came = at + us + 2
                run.collective(rank, "all_reduce", came, until - came, size=1 << 20, **launched)
                begun += 20
    found = culprits(run.trace(), 0.05).found
    assert [its.ranks for its in found] == [(0,), (2,)]
    assert [its.on_top_ns for its in found] == pytest.approx([9_000_000, 3_000_000], rel=0.05)


def test_siblings_leave_out_what_is_needless_together() -> None:
    """Two halves reduce again what all have: one that does not would wait for the other."""
    twice = [fault for fault in FAULTS if fault.rule == "redundant"][1]
    it = case(3, twice, smallest=0.1)
    (finding,) = diagnose(it.trace, select=["redundant"]).findings
    assert finding.cost_ns == pytest.approx(1e3 * it.truths[0].gain_us, rel=0.05)  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["data parallel", "pipeline", "tensor parallel"])
def test_nobody_delays_a_clean_run(kind: str) -> None:
    assert culprits(CLEAN[kind](1).trace, 0.05).found == ()


def test_own_work_is_the_same_however_late_the_device_gets_to_it() -> None:
    """Rank 0 waits in the first operation, and meanwhile computes what the second one needs."""
    run = Tiny(ranks=2)
    for rank, us in ((0, 100), (1, 900)):
        run.step(rank, 0, 0, 3000)
        run.kernel(rank, 20, us, launch_ns=at(0))
        run.collective(rank, "all_reduce", 20 + us, 1000 - us, size=4096, launch_ns=at(10))
        run.kernel(rank, 20 + us, 500, launch_ns=at(20))
        began = 1030 if rank == 0 else 1420
        run.collective(rank, "all_reduce", began, 1500 - began, size=8192, launch_ns=at(30))
    trace = run.trace()
    calls, own = run_graph(trace).calls, own_work(trace).own_ns[:, DEVICES]
    by_rank = [own[calls.rank == rank].tolist() for rank in (0, 1)]
    assert by_rank == [[100_000, 500_000], [900_000, 500_000]]


def test_a_host_that_launches_when_all_is_done_has_waited_for_it() -> None:
    run = Tiny()
    run.kernel(0, 5, 95, launch_ns=at(0))
    run.kernel(0, 100, 50, launch_ns=at(10))  # ahead of the device
    run.kernel(0, 205, 5, launch_ns=at(200))
    calls = with_waits(rank_tables(run.trace(), 0))["blocking_calls"]
    assert calls.ints("start_ns").tolist() == [at(20)]
    assert calls.ints("duration_ns").tolist() == [130_000]


def test_recorded_calls_are_all_there_are() -> None:
    run = Tiny()
    run.kernel(0, 5, 95, launch_ns=at(0))
    run.kernel(0, 205, 5, launch_ns=at(200))
    run.blocking_call(0, "cudaDeviceSynchronize", 300, 5)
    tables = rank_tables(run.trace(), 0)
    assert with_waits(tables) is tables


def test_clocks_count_only_between_those_that_differ() -> None:
    """Rank 1 is late for its own host; the other host's clock is in one operation of a step."""
    run = Tiny(4, hosts=("a", "b"))
    run.groups |= {"tp0": (0, 1), "tp1": (2, 3)}
    now = 0.0
    for step in range(6):
        begin, launched = now, at(now)
        late = dict.fromkeys(range(4), begin + 20)
        for _ in range(10):
            for group in ("tp0", "tp1"):
                come = {r: late[r] + (62 if r == 1 else 50) for r in run.groups[group]}
                end = max(come.values()) + 30
                for rank, at_us in come.items():
                    run.kernel(rank, late[rank], at_us - late[rank], launch_ns=launched)
                    args = {"group": group, "launch_ns": launched}
                    run.collective(rank, "all_reduce", at_us, end - at_us, **args)
                    late[rank] = end
        now = max(late.values()) + 40
        for rank, at_us in late.items():
            run.collective(rank, "all_reduce", at_us, now - at_us, launch_ns=launched)
            run.blocking_call(rank, "cudaDeviceSynchronize", begin + 1, now - begin - 1)
            run.step(rank, step, begin, now - begin)
    (its,) = culprits(run.trace(), 0.05).found
    assert (its.ranks, its.doubt) == ((1,), None)


def test_errors_of_clocks_count_once_in_groups_side_by_side() -> None:
    """Host b is 62 µs late to each of ten operations of its ranks with those of host a."""
    count = 16
    run = Tiny(2 * count, hosts=("a", "b"))
    run.groups |= {f"dp{i}": (i, i + count) for i in range(count)}
    now = 0.0
    for step in range(6):
        begin, launched = now, at(now)
        for _ in range(10):
            for rank in range(2 * count):
                # Ends differ by 6 µs: the clocks are known no better.
                come, end = now + 50 + 62 * (rank >= count), now + 142 + 6 * (rank < count)
                run.kernel(rank, now, come - now, launch_ns=launched)
                args = {"group": f"dp{rank % count}", "launch_ns": launched}
                run.collective(rank, "all_reduce", come, end - come, **args)
            now += 150
        for rank in range(2 * count):
            run.blocking_call(rank, "cudaDeviceSynchronize", begin + 1, now - begin - 1)
            run.step(rank, step, begin, now - begin)
    (its,) = culprits(run.trace(), 0.05).found
    assert its.ranks == tuple(range(count, 2 * count))
    assert "clocks" not in (its.doubt or "")


@pytest.mark.parametrize("seed", [55, 65, 69])
def test_ranks_that_take_turns_are_no_set(seed: int) -> None:
    """Half of the ranks, those that chance had late most often, in steps of their own each."""
    jitter = next(fault for fault in FAULTS if fault.rule == "jitter")
    assert not culprits(case(seed, jitter, smallest=SMALLEST).trace, 0.05).found


@pytest.mark.parametrize("seed", [13, 29])
def test_kernels_that_ranks_run_more_of_by_turns_are_not_counted_as_one_ranks(seed: int) -> None:
    """Of two ranks one runs more in the mean, but in seven of twelve steps only."""
    jitter = next(fault for fault in FAULTS if fault.rule == "jitter")
    run = case(seed, jitter, smallest=SMALLEST).trace
    assert not culprits(run, 0.05).found
    assert diagnose(run, select=["jitter"]).findings


def test_an_operation_is_one_place_whatever_part_of_it_ranks_get() -> None:
    """Rank 0 gets most tokens of the all_to_all, and computes 6 ms behind it, the others 2."""
    run = Tiny(4)
    for step in range(8):
        at = 10_000.0 * step
        for rank in range(4):
            size = (1 << 20) * (5 if rank == 0 else 1)
            run.step(rank, step, at, 10_000)
            run.collective(rank, "all_to_all", at + 100, 400, in_bytes=size, out_bytes=size)
            long = 6_000 if rank == 0 else 2_000
            run.kernel(rank, at + 510, long)
            run.collective(rank, "all_reduce", at + 520 + long, 9_000 - 520 - long, size=1 << 20)
    (culprit,) = culprits(run.trace(), 0.05).found
    assert culprit.ranks == (0,)
    assert culprit.on_top_ns / 8 == pytest.approx(4_000_000, rel=0.01)


def test_many_small_delays_before_one_operation_are_its_place() -> None:
    """Rank 2 computes 0.6 ms more before an all_gather, 0.4 ms before each of four others."""
    run = Tiny(4)
    parts = (("all_gather", 600), *(("reduce_scatter", 400),) * 4)
    for step in range(8):
        for rank in range(4):
            at = 10_000.0 * step
            run.step(rank, step, at, 10_000)
            for op, more in parts:
                long, until = 1_000 + more * (rank == 2), at + 1_000 + more + 100
                run.kernel(rank, at + 10, long - 20)
                run.collective(rank, op, at + long, until - at - long, size=1 << 20)
                at = until
    trace = run.trace()
    (culprit,) = culprits(trace, 0.05).found
    assert culprit.ranks == (2,)
    row = run_graph(trace).calls.row[culprit.call]
    assert trace.rows("collectives").coded("op").decoded()[row] == "reduce_scatter"


def test_of_even_stages_none_is_late_to_the_collective_behind_them() -> None:
    """The first works 1 and 2 ms around its messages, the last 3 ms between its own."""
    run = Tiny(ranks=2)
    for step in range(8):
        start = step * 6_400
        for rank in (0, 1):
            run.step(rank, step, start, 6_400)
        run.kernel(0, start + 20, 980, launch_ns=at(start + 1))
        message(run, 0, 1, start + 1_000, start + 20)
        run.kernel(1, start + 1_100, 3_000, launch_ns=at(start + 3))
        message(run, 1, 0, start + 4_100, start + 1_100)
        run.kernel(0, start + 4_200, 2_000, launch_ns=at(start + 5))
        for rank, arrival in ((0, 6_200), (1, 4_200)):
            its = {"size": 1 << 10, "launch_ns": at(start + 6)}
            run.collective(rank, "all_reduce", start + arrival, 6_300 - arrival, **its)
    found = diagnose(run.trace(), select=["straggler", "device-late", "jitter"]).findings
    assert not found


def message(run: Tiny, sender: int, to: int, sent_us: int, posted_us: int) -> None:
    """It takes 100 µs; both sides are launched when the step begins."""
    launch_ns = at(sent_us // 6_400 * 6_400 + (2 if sender == 0 else 4))
    for rank, op, peer, arrival in (
        (sender, "send", to, sent_us),
        (to, "recv", sender, posted_us),
    ):
        took = sent_us + 100 - arrival
        its = {"size": 1 << 20, "peer": peer, "launch_ns": launch_ns}
        run.collective(rank, op, arrival, took, **its)


def _stages_of_pairs(slow: float = 1.0, micro: int = 6) -> Loop:
    """1F1B over two stages of two tensor-parallel ranks each; rank 1 computes so much longer."""
    loop = Loop(3, ranks=4, steps=6, host_leads=True)
    loop.step_us, loop.speed[1] = 12_000, slow
    stages = ((0, 1), (2, 3))
    for pair in stages:
        loop.run.groups[f"tp{pair[0]}"] = pair

    def one(stage: int, share: float, to: int) -> None:
        for rank in stages[stage]:
            loop.compute(rank, share * loop.step_us / micro, name=loop.name("forward"))
        loop.together(
            "all_reduce", 200_000, ranks=stages[stage], group=f"tp{stages[stage][0]}", wait=True
        )
        if 0 <= to <= 1:
            for source, target in zip(stages[stage], stages[to], strict=True):
                loop.message(source, target, 100_000, stream=30 + to)

    for _ in range(loop.steps):
        with loop.step():
            one(0, 0.15, 1)
            for batch in range(micro):
                if batch + 1 < micro:
                    one(0, 0.15, 1)
                one(1, 0.15, -1)
                one(1, 0.3, 0)
                one(0, 0.3, -1)
    return loop


def test_a_slow_rank_of_a_pipelines_stage_is_compared_with_that_stage() -> None:
    even, slow = _stages_of_pairs(), _stages_of_pairs(1.3)
    assert not culprits(even.trace(), 0.05).found
    first, *_ = diagnose(slow.trace()).findings
    assert first.rule in ("straggler", "late-sender")  # its pair waits for it, and the next stage
    assert first.ranks == (1,)
    costs_us = slow.elapsed_us() - even.elapsed_us()
    assert first.cost_ns / 1e3 == pytest.approx(costs_us, rel=0.1)


def copying(took_us: float) -> Measures:
    """Rank 1 of three copies from pageable memory, which its host feeds, before each all_reduce.

    The others copy in 200 µs from pinned memory. All launch what follows behind the copy's call.
    """
    run, begin = Tiny(ranks=3), 0.0
    way = {"kind": "HtoD", "size": 1 << 22, "source": "host", "destination": "cuda:0"}
    for step in range(8):
        over = begin + 1_100 + max(took_us, 200)
        for rank in range(3):
            memory, took = ("pageable", took_us) if rank == 1 else ("pinned", 200.0)
            call = took - 5 if rank == 1 else 5
            run.copy(rank, begin + 10, took, memory=memory, launch_ns=at(begin + 5), **way)
            run.blocking_call(rank, "cudaMemcpyAsync", begin + 5, call)
            launched = at(begin + 10 + call)
            run.kernel(rank, begin + 20 + took, 900, launch_ns=launched)
            came = begin + 930 + took
            run.collective(rank, "all_reduce", came, over - came, size=4, launch_ns=launched + 10)
            run.blocking_call(rank, "cudaDeviceSynchronize", begin + 20 + call, over - begin - call)
            run.step(rank, step, begin, over + 20 - begin)
        begin = over + 25
    return run.trace()


def test_a_host_that_feeds_a_copy_is_done_with_it_as_early_as_the_copy() -> None:
    run = copying(2_000)
    (saved,) = whatif(run, ["rank=1:typical"]).edits
    shorter = int(run_graph(run).step_ns.sum() - run_graph(copying(200)).step_ns.sum())
    assert saved.saved_ns == pytest.approx(shorter, rel=0.02)
    (first,) = culprits(run, 0.05).found
    assert (first.ranks, first.cause) == ((1,), "copy")


def ahead(rank_1_us: float) -> Tiny:
    """Hosts that are two steps ahead of their GPUs when the profiler begins, at the third.

    Of three ranks rank 1 computes so long before each all_reduce, the others 1 ms.
    """
    run, begin, longest = Tiny(ranks=3), 0.0, max(rank_1_us, 1_000)
    for step in range(8):
        for rank in range(3):
            took, called = rank_1_us if rank == 1 else 1_000.0, (step - 2) * 300.0
            known = {"launch_ns": NULL, "step": NULL}
            if step >= 2:
                run.step(rank, step, called, 290)
                known = {"launch_ns": at(called + 10), "step": step}
            run.kernel(rank, begin, took, **known)
            lasts = longest + 100 - took
            run.collective(rank, "all_reduce", begin + took, lasts, size=1 << 26, **known)
        begin += longest + 100
    return run


def test_what_gpus_still_run_of_steps_before_the_recording_is_of_none_of_its_steps() -> None:
    assert not culprits(ahead(1_000).trace(), 0.05).found
    (late,) = culprits(ahead(1_200).trace(), 0.05).found
    assert late.ranks == (1,)
    assert late.in_every
    assert late.steps_ns.tolist() == 6 * [200_000]
    its = run_graph(ahead(1_200).trace())
    edges, _ = its.transfers
    assert (its.graph.time_ns[its.graph.target[edges]] > its.begin_ns).all()
    assert edges.size == 6 * 3
