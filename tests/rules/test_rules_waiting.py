"""Who is late, who waits, and for what: thresholds, confounders, the recordings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtrace.causal.chance import at_least
from commtrace.diagnosis import Finding, Note
from commtrace.measures import Measures
from commtrace.metrics.run.pipelines import chains_of, messages_of
from commtrace.metrics.run.waits import matched
from commtrace.reader import read
from commtrace.rules import RULES, diagnose
from commtrace.rules._unsure import why_unsure
from commtrace.synthetic import BASE_NS, Tiny
from commtrace.trace_tables import RECORDED_APART, TABLES
from tests.edited import edited
from tests.gloo_loop import gloo_loop

TRACES = Path(__file__).parents[2] / "traces"
MINE = [
    *("straggler", "host-late", "device-late", "jitter", "late-root", "early-root"),
    *("late-sender", "late-receiver", "pipeline-bubble", "exposed-communication"),
    *("false-overlap", "head-of-line", "contention", "host-sync", "launch-gap"),
]
GPU_ONLY = ("head-of-line", "contention", "host-sync", "launch-gap")


@cache
def recorded(name: str) -> Measures:
    return read([TRACES / name])


def found(trace: Measures, *rules: str) -> tuple[Finding, ...]:
    return diagnose(trace, select=rules).findings


def reason(trace: Measures, rule: str) -> str:
    return diagnose(trace, select=[rule]).skipped[rule]


def late_run(compute_us: list[float], steps: int = 12, hosts: tuple[str, ...] = ("a",)) -> Measures:
    """Every rank computes, then all reduce until 8 ms of a step of 10 ms; hosts are ahead."""
    run = Tiny(ranks=len(compute_us), hosts=hosts)
    for step in range(steps):
        for rank, time in enumerate(compute_us):
            start = step * 10_000
            run.step(rank, step, start, 10_000)
            run.kernel(rank, start, time)
            launch = BASE_NS + 1000 * start
            run.collective(
                rank, "all_reduce", start + time, 8000 - time, size=1 << 26, launch_ns=launch
            )
    return run.trace()


# ── straggler ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("longer_ms", "told"), [((40, 40), "for 40 ms in 2"), ((40, 10), "for up to 40 ms in 2")]
)
def test_who_computes_more_in_some_steps_only_is_asked_what_it_does_there(
    longer_ms: tuple[int, int], told: str
) -> None:
    longer = dict(zip((2, 6), longer_ms, strict=True))
    run = Tiny(ranks=2)
    for step in range(8):
        start = step * 60_000
        for rank in (0, 1):
            time = 5_000 + 1_000 * longer.get(step, 0) * rank
            run.step(rank, step, start, 60_000)
            run.kernel(rank, start, time)
            launch = BASE_NS + 1000 * start
            run.collective(
                rank, "all_reduce", start + time, 55_000 - time, size=1 << 26, launch_ns=launch
            )
    (late,) = found(run.trace(), "straggler")
    assert f"{told} of 8 steps, computing" in late.summary
    assert "in these steps only" in late.advice


def test_the_recorded_straggler_is_named_with_its_cost() -> None:
    straggler, refined = found(recorded("straggler/gloo-4"), "straggler", "device-late")
    assert (straggler.rule, straggler.ranks) == ("straggler", (1,))
    assert 0.5 * 12 * 10e6 < straggler.cost_ns < 1.2 * 12 * 10e6
    assert (refined.rule, refined.ranks, refined.explained_by) == ("device-late", (1,), "straggler")


def test_without_steps_the_run_is_spoken_of_in_tenths() -> None:
    run = late_run([1000, 5000])
    (its, *_) = found(replace(run, steps=run.rows("steps").take(slice(0))), "straggler")
    assert its.summary.startswith("rank 1 delays the run by ")


def test_who_is_late_to_what_a_graph_launched_is_named_by_the_kernels_name() -> None:
    """Without metadata, and so without op, size and number."""
    unseen = {"op": None, "seq": None, "size_bytes": None, "in_bytes": None, "out_bytes": None}
    run = edited(late_run([1000, 5000]), "collectives", **unseen)
    (its, *_) = found(run, "straggler")
    assert its.ranks == (1,)
    assert "before the all_reduce" in its.summary


def test_the_rank_that_sleeps_before_its_barriers_is_late_by_its_host() -> None:
    straggler, host = found(recorded("barrier/gloo-4"), "straggler", "host-late", "device-late")
    assert (straggler.ranks, host.ranks, host.rule) == ((3,), (3,), "host-late")


@pytest.mark.parametrize(
    "name",
    [
        str(path.parent.relative_to(TRACES))
        for path in sorted(TRACES.glob("*/gloo-*/expected.json"))
        if path.parent.parent.name not in ("straggler", "barrier")
    ],
)
def test_no_recording_without_a_slow_rank_has_a_straggler(name: str) -> None:
    assert not found(recorded(name), "straggler", "host-late", "device-late")
    assert not found(recorded(name), *GPU_ONLY)


@settings(max_examples=10, deadline=None)
@given(ranks=st.integers(2, 5), data=st.data())
def test_whoever_is_late_is_named(ranks: int, data: st.DataObject) -> None:
    late = data.draw(st.integers(0, ranks - 1))
    trace = late_run([4000.0 if rank == late else 1000.0 for rank in range(ranks)])
    straggler, device = found(trace, "straggler", "device-late", "host-late")
    assert straggler.ranks == device.ranks == (late,)
    assert device.summary == f"late on the device, {straggler.summary}"
    assert straggler.cost_ns == 12 * 3_000_000
    assert device.rule == "device-late"


def test_who_is_blamed_among_some_of_the_ranks_is_blamed_with_care() -> None:
    whole = late_run([1000, 5000, 1000, 1000])
    there: Any = {
        name: (its := whole.rows(name)).take(its.ints("rank") < 3)
        for name in ("kernels", "collectives", "steps", "groups", "ranks")
    }
    (sure,) = found(whole, "straggler")
    (careful,) = found(replace(whole, **there), "straggler")
    assert (sure.confidence, careful.confidence) == ("high", "medium")
    assert careful.summary.endswith("; only 3 of 4 ranks were compared")
    assert "compared" not in sure.summary


def test_the_order_of_the_rows_does_not_matter() -> None:
    for rule in MINE:
        trace = RULES[rule].bad()
        dice = np.random.default_rng(1)
        tables: Any = {
            table.name: (its := trace.rows(table.name)).take(dice.permutation(len(its)))
            for table in TABLES
        }
        assert found(replace(trace, **tables), rule) == found(trace, rule), rule


def test_lateness_below_five_percent_of_the_step_is_not_worth_reporting() -> None:
    assert found(late_run([1000, 1510]), "straggler")
    assert not found(late_run([1000, 1490]), "straggler")


def test_three_steps_are_enough_and_one_rank_is_not() -> None:
    (straggler,) = found(late_run([1000, 5000], steps=3), "straggler")
    assert straggler.ranks == (1,)
    assert "several ranks" in reason(late_run([1000]), "straggler")


def test_lateness_within_the_clocks_error_is_nobodys() -> None:
    run = Tiny(ranks=2)
    for i in range(20):
        for rank in (0, 1):
            run.collective(rank, "all_reduce", 20 * i + 2 * rank, 10 - 2 * rank, size=1 << 20)
    assert not found(run.trace(), "straggler")


def test_who_waited_elsewhere_is_not_blamed() -> None:
    run = Tiny(ranks=3)
    run.groups = {"pair": (0, 1), "others": (0, 2)}
    for step in range(12):
        start = step * 10_000
        for rank, arrival in ((0, 500), (1, 4000)):
            run.collective(
                rank, "all_reduce", start + arrival, 4500 - arrival, size=1 << 20, group="pair"
            )
        for rank, arrival in ((0, 4600), (2, 1000)):
            run.collective(
                rank, "all_reduce", start + arrival, 8000 - arrival, size=1 << 20, group="others"
            )
    assert [finding.ranks for finding in found(run.trace(), "straggler")] == [(1,)]


def test_who_was_let_out_later_is_not_blamed() -> None:
    run = Tiny(ranks=3)
    for i in range(12):
        start = i * 10_000
        for rank in range(3):
            first = 2000 if i and rank == 1 else 0
            run.collective(
                rank, "all_reduce", start + first, 10_000 - first + 1900 * (rank == 1), size=1 << 20
            )
    assert not found(run.trace(), "straggler")


def test_the_binomial_tail() -> None:
    assert at_least(0, 10, 0.3) == at_least(5, 10, 1.0) == 1.0
    assert at_least(11, 10, 0.3) == 0.0
    assert at_least(10, 10, 0.5) == pytest.approx(2**-10)
    assert at_least(600_000, 1_000_000, 0.5) < 1e-300
    assert at_least(500_000, 1_000_000, 0.5) == pytest.approx(0.5, abs=1e-3)


# ── roots, senders, receivers, pipelines ───────────────────────────────────────────────────


def test_a_root_that_is_let_out_of_its_reduce_last_is_not_late_to_the_broadcast() -> None:
    run = Tiny(ranks=3)
    for i in range(12):
        start = i * 10_000
        for rank in range(3):
            done = 6000 if rank == 0 else 2000
            run.collective(rank, "reduce", start, done, size=1 << 26, root=0)
            run.collective(rank, "broadcast", start + done + 10, 9000 - done, size=1 << 26, root=0)
    assert not found(run.trace(), "late-root")


def test_a_root_whose_host_stalls_is_why_its_gpu_has_nothing_to_run() -> None:
    run = Tiny(ranks=3)
    for step, rank in product(range(12), range(3)):
        start, late = step * 10_000, 4_000 if rank == 0 else 0
        run.step(rank, step, start, 10_000)
        run.kernel(rank, start + 30 + late, 1000)
        came, launched = start + 1040 + late, {"launch_ns": BASE_NS + 1000 * (start + late + 35)}
        run.collective(
            rank, "broadcast", came, start + 9_000 - came, size=1 << 26, root=0, **launched
        )
    cause, symptom = found(run.trace(), "late-root", "launch-gap")
    assert (cause.rule, symptom.rule) == ("late-root", "launch-gap")
    assert symptom.explained_by == "late-root"


def test_without_a_known_root_nobody_can_look() -> None:
    run = Tiny(ranks=2)
    for i in range(12):
        for rank in (0, 1):
            run.collective(rank, "broadcast", i * 1000 + 500 * rank, 400, size=1 << 20)
    assert "needs to know the roots" in reason(run.trace(), "late-root")


def test_a_buffered_send_waits_for_nobody() -> None:
    run = Tiny(ranks=2)
    for start in range(0, 120_000, 10_000):
        run.collective(0, "send", start, 100, size=1 << 10, peer=1)
        run.collective(1, "recv", start + 5000, 100, size=1 << 10, peer=0)
    assert not found(run.trace(), "late-receiver")


def test_who_sends_and_receives_at_once_is_late_for_what_others_await() -> None:
    """Rank 0 of a chain sends to 1 and receives from it in one kernel, and comes late."""
    run = Tiny(ranks=2)
    for step, rank in product(range(12), (0, 1)):
        start, late = step * 10_000, 4_000 if rank == 0 else 0
        run.step(rank, step, start, 10_000)
        launched = BASE_NS + 1000 * start
        run.kernel(rank, start, 1_000 + late, launch_ns=launched)
        came = start + 1_010 + late
        for op in ("send", "recv"):
            its = {"size": 1 << 26, "peer": 1 - rank, "launch_ns": launched + 10_000}
            run.collective(rank, op, came, start + 9_000 - came, **its)
        run.rows["kernels"].pop()
    findings = found(run.trace(), "late-receiver", "late-sender")
    assert [its.rule for its in findings] == ["late-receiver"]
    assert "computing before the recv" in findings[0].summary


def test_a_late_stage_is_a_symptom_of_the_bubble() -> None:
    bubble, *others = found(
        recorded("pipeline/gloo-4"), "pipeline-bubble", "late-sender", "exposed-communication"
    )
    assert bubble.rule == "pipeline-bubble"
    assert {one.name: one.value for one in bubble.evidence}["bubble of equal stages"] == (
        pytest.approx(100 * 3 / 7)
    )
    assert others
    assert {other.explained_by for other in others} == {"pipeline-bubble"}


def test_more_micro_batches_leave_a_quarter_of_the_bubble_and_add_messages() -> None:
    (bubble,) = found(RULES["pipeline-bubble"].bad(), "pipeline-bubble")
    waiting = {one.name: one.value for one in bubble.evidence}["mean waiting of a stage"]
    added = 3 * 12 * (10_000 + 3_000)  # a message, and a kernel, however small
    assert bubble.cost_ns == pytest.approx(0.75 * waiting - added)


def bubbles_of(trace: Measures, **thresholds: float) -> tuple[Finding, ...]:
    return diagnose(
        trace, select=["pipeline-bubble"], thresholds={"pipeline-bubble": thresholds}
    ).findings


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("serves", [True, False])
def test_who_serves_two_others_is_no_stage_between_them(serves: bool, first: int) -> None:
    """Rank 0 takes what ranks 1 and 2 send, and answers; or hands on from 1 to 2, and back.

    Wherever among these the recording begins.
    """
    run = Tiny(ranks=3, backend="gloo")
    in_turn = [(1, 0), (2, 0), (0, 1), (0, 2)] if serves else [(1, 0), (0, 2), (2, 0), (0, 1)]
    for number in range(32):
        start = 12_000 * number
        for place, (source, target) in enumerate(in_turn):
            if number == 0 and place < first:
                continue
            begin, end = start + 3000 * place, start + 3000 * place + 2000
            run.op(source, begin, 1900)
            run.collective(source, "send", end - 50, 50, size=1 << 20, peer=target)
            run.collective(target, "recv", begin, 2000, size=1 << 20, peer=source)
    assert bool([*chains_of(messages_of(run.trace(), 6))]) != serves


def filling(micro_batches: int, second_us: float = 970, backend: str = "nccl") -> Measures:
    """Two stages; the second waits for the first micro-batch of each step, and messages."""
    run = Tiny(ranks=2, backend=backend)
    works = run.kernel if backend == "nccl" else run.op
    run.groups = {"pp": (0, 1)}
    length = (micro_batches + 1) * 1000
    for step, rank in product(range(4), (0, 1)):
        run.step(rank, step, step * length, length)
    for step, batch in product(range(4), range(micro_batches)):
        start = step * length
        ready = start + (batch + 1) * 1000
        posted = ready - 994 + second_us if batch else start + 5
        its: dict[str, Any] = {"size": 1 << 20, "group": "pp"}
        works(0, ready - 990, 970)
        for rank, op, at in ((0, "send", ready - 10), (1, "recv", posted)):
            if backend == "gloo":
                its |= {"thread": 1, "asynchronous": 0, "launch_ns": BASE_NS + round(1e3 * at)}
                run.gap(rank, at, ready - at)
            run.collective(rank, op, at, ready - at, peer=1 - rank, **its)
        works(1, ready + 6, second_us)
    return run.trace()


@pytest.mark.parametrize(("micro_batches", "fires"), [(3, True), (8, False)])
def test_a_bubble_that_more_micro_batches_hardly_shorten_is_none(
    micro_batches: int, fires: bool
) -> None:
    """Each added message takes time, too."""
    trace = filling(micro_batches)
    assert bool(bubbles_of(trace)) == fires


@pytest.mark.parametrize(("backend", "micro_batches"), [("gloo", 2), ("nccl", 4)])
def test_cpus_with_twice_as_many_micro_batches_as_stages_have_enough(
    backend: str, micro_batches: int
) -> None:
    assert bubbles_of(filling(micro_batches, backend=backend), min_step_share=0.01)
    assert not bubbles_of(filling(4, backend="gloo"), min_step_share=0.01)


def test_what_a_short_stage_waits_for_a_long_one_more_micro_batches_do_not_shorten() -> None:
    """It waits half of the time; a ninth fills, of which a quarter is left, and what is added."""
    (bubble,) = bubbles_of(filling(8, second_us=485), min_step_share=0.01)
    assert bubble.evidence[0].value > 2 * 4 * 1e6
    assert bubble.cost_ns == pytest.approx(4 * (0.75 * 1e6 - 3 * 8 * 13_000), rel=0.01)


def test_what_added_messages_take_is_told() -> None:
    (bubble,) = bubbles_of(filling(8), min_step_share=0.01)
    assert bubble.advice.endswith(
        "idle only 3 % of the time, but what each takes whatever its size adds 1.25 ms; on "
        "smaller ones kernels may be less efficient, which interleaving (several model chunks per "
        "stage) avoids"
    )


def pipeline(slow_us: float) -> Tiny:
    """Four stages, six micro-batches, all launched as a step begins, and an all_reduce.

    Messages take 100 µs, those from stage 1 to 2 as given.
    """
    run, free = Tiny(ranks=4), [0.0] * 4
    for step in range(6):
        begin = max(free)
        free = [begin + 50] * 4
        for batch, rank in product(range(6), range(4)):
            launched = {"launch_ns": BASE_NS + round(1e3 * (begin + 5 * batch))}
            if rank:
                over = max(free[rank - 1 : rank + 1]) + (slow_us if rank == 2 else 100)
                for one, op, peer in ((rank - 1, "send", rank), (rank, "recv", rank - 1)):
                    took = over - free[one]
                    run.collective(one, op, free[one], took, size=1 << 20, peer=peer, **launched)
                    free[one] = over
            run.kernel(rank, free[rank], 1000, **launched)
            free[rank] += 1000
        over = max(free) + 20
        for rank in range(4):
            run.collective(rank, "all_reduce", free[rank], over - free[rank], size=4, **launched)
            run.blocking_call(rank, "cudaDeviceSynchronize", begin + 40, over - begin - 40)
            run.step(rank, step, begin, over - begin)
        free = [over] * 4
    return run


def test_what_waits_for_a_slow_link_is_no_bubble() -> None:
    (healthy,) = found(pipeline(100).trace(), "pipeline-bubble")
    slow = pipeline(1500).trace()
    (link,) = found(slow, "slow-link")
    assert link.ranks == (1, 2)
    (bubble,) = bubbles_of(slow, min_step_share=0.01)
    assert bubble.cost_ns == pytest.approx(healthy.cost_ns, rel=0.1)


def test_a_recv_that_waits_beside_compute_is_no_bubble() -> None:
    """Posted while the micro-batch before is computed: the stage waits for its first one alone."""
    run = Tiny(ranks=2)
    for step in range(6):
        start = step * 9_000
        for rank in (0, 1):
            run.step(rank, step, start, 9_000)
        for batch in range(8):
            ready = start + (batch + 1) * 1000
            run.kernel(0, ready - 1000, 980)
            run.collective(0, "send", ready - 10, 10, size=1 << 20, peer=1)
            run.collective(1, "recv", ready - 1000, 1000, size=1 << 20, peer=0)
            run.kernel(1, ready, 990, launch_ns=BASE_NS + 1000 * (ready - 995))  # waits for it
    (bubble,) = bubbles_of(run.trace(), min_step_share=0.005)
    waiting = {one.name: one.value for one in bubble.evidence}["mean waiting of a stage"]
    assert waiting == pytest.approx(6 * 990e3 / 2)


def test_pipelines_that_are_alike_are_one_finding() -> None:
    """As tensor parallelism has them, one for each of its ranks."""
    run = Tiny(ranks=4)
    for step, first in product(range(12), (0, 1)):
        start = step * 10_000
        for rank, to, begins in ((first, first + 2, 0), (first + 2, first, 5_000)):
            run.step(rank, step, start, 10_000)
            run.kernel(rank, start + begins, 4_900)
            run.collective(rank, "send", start + begins + 4_900, 100, size=1 << 20, peer=to)
            run.collective(to, "recv", start + begins, 5_000, size=1 << 20, peer=rank)
    (bubble,) = found(run.trace(), "pipeline-bubble")
    assert bubble.summary.startswith("the 2 stages of 2 pipelines wait 49 % of the time")
    assert bubble.ranks == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("back", "rules"), [(1 << 20, ["pipeline-bubble"]), (1 << 10, []), (None, [])]
)
def test_a_message_that_comes_back_as_large_is_an_activation(
    back: int | None, rules: list[str]
) -> None:
    """And then its gradient: a pipeline of one micro-batch, not a question and its answer."""
    run = Tiny(ranks=2)
    for step in range(12):
        start = step * 10_000
        for rank in range(2):
            run.step(rank, step, start, 10_000)
            run.kernel(rank, start + 5_000 * rank, 4_900)
        run.collective(0, "send", start + 4_900, 100, size=1 << 20, peer=1)
        run.collective(1, "recv", start, 5_000, size=1 << 20, peer=0)
        if back:
            run.collective(1, "send", start + 9_900, 100, size=back, peer=0)
            run.collective(0, "recv", start + 5_000, 5_000, size=back, peer=1)
    assert [its.rule for its in found(run.trace(), "pipeline-bubble")] == rules
    for its in found(run.trace(), "pipeline-bubble"):
        assert "1 micro-batch leaves 50 % idle" in its.summary


@pytest.mark.parametrize(
    ("has_steps", "closing", "told"), [(True, 3, True), (False, 3, False), (True, 6, False)]
)
def test_an_interleaved_pipeline_hands_on_from_its_last_stage_to_its_first(
    has_steps: bool, closing: int, told: bool
) -> None:
    """Three stages of two chunks, three micro-batches: each works for six of eight ms.

    Where the last hands on as often as the others it passes on something else.
    """
    run = Tiny(ranks=3)
    for step in range(6):
        start = step * 8_000
        for rank in range(3 * has_steps):
            run.step(rank, step, start, 8_000)
        for rank, piece in product(range(3), range(6)):
            begins = start + 1_000 * (rank + piece)
            run.kernel(rank, begins + 10, 980)
            if rank < 2 or piece < closing:
                run.collective(rank, "send", begins + 991, 9, size=1 << 20, peer=(rank + 1) % 3)
            if rank or piece >= 6 - closing:
                posted = begins - 8 if piece else start
                peer = (rank + 2) % 3
                run.collective(rank, "recv", posted, begins - posted, size=1 << 20, peer=peer)
    bubbles = found(run.trace(), "pipeline-bubble")
    assert bool(bubbles) == told
    if not told:
        return
    (bubble,) = bubbles
    assert "with equal stages, 3 micro-batches in 2 chunks leave 25 % idle" in bubble.summary
    assert "with 12 micro-batches instead of 3, equal stages are idle only 8 %" in bubble.advice


def test_a_ring_is_no_pipeline() -> None:
    assert "chain" in reason(recorded("isend_irecv/gloo-4"), "pipeline-bubble")


def test_ranks_that_exchange_their_edges_are_no_pipeline() -> None:
    """Each sends to both neighbours before it has received anything."""
    run = Tiny(ranks=3)
    for step in range(6):
        start = step * 10_000
        for rank in range(3):
            run.step(rank, step, start, 10_000)
            run.kernel(rank, start, 2_000 + 2_000 * (rank == 1))
        for way, (a, b) in enumerate(((0, 1), (1, 2)) * 2):
            for rank, peer in ((a, b), (b, a)):
                arrival = start + 2_000 + 2_000 * (rank == 1) + 10 * (way % 2)
                end = start + 5_000 + 10 * way
                op = "send" if rank < peer else "recv"
                if way >= 2:
                    op = "recv" if rank < peer else "send"
                run.collective(rank, op, arrival, end - arrival, size=1 << 20, peer=peer)
    assert "chain" in reason(run.trace(), "pipeline-bubble")


# ── overlap ────────────────────────────────────────────────────────────────────────────────


def test_only_the_variant_that_waits_too_early_overlaps_falsely() -> None:
    (finding,) = found(recorded("overlap/gloo-4"), "false-overlap")
    assert "'waited_too_early'" in finding.summary
    assert not found(recorded("ddp_training/gloo-4"), "false-overlap")


@pytest.mark.parametrize(("woke_us", "fires"), [(900, True), (1100, False)])
def test_a_thread_that_wakes_late_still_waited(woke_us: float, fires: bool) -> None:
    """Up to a quarter of the 4 ms that the operation took."""
    run = Tiny()
    for step in range(12):
        start = 10_000 * step
        run.collective(0, "all_reduce", start, 4000, size=1 << 24, asynchronous=1)
        run.kernel(0, start + 4000 + woke_us, 3000)
    assert bool(found(run.trace(), "false-overlap")) == fires


@pytest.mark.parametrize(("update", "fires"), [(True, False), (False, True)])
def test_what_an_update_needs_is_not_waited_for_too_early(update: bool, fires: bool) -> None:
    """The one bucket of all gradients, right before the optimizer steps."""
    run = Tiny()
    for step in range(12):
        start = 10_000 * step
        run.collective(0, "all_reduce", start, 4000, size=1 << 24, asynchronous=1)
        if update:
            run.step(0, step, start + 10, 100, label="Optimizer.step#AdamW.step")
        run.kernel(0, start + 4010, 3000)
    assert bool(found(run.trace(), "false-overlap")) == fires


@pytest.mark.parametrize(("group", "fires"), [("tp", False), ("dp", True)])
def test_what_tensor_parallelism_needs_is_not_waited_for_too_early(group: str, fires: bool) -> None:
    run = Tiny(2)
    run.groups = {group: (0, 1)}
    its = {"size": 1 << 24, "asynchronous": 1, "group": group}
    for step, rank in product(range(12), range(2)):
        run.collective(rank, "all_reduce", 10_000 * step, 4000, **its)
        run.kernel(rank, 10_000 * step + 4010, 3000)
    assert bool(found(run.trace(), "false-overlap")) == fires


def test_synchronous_calls_overlap_nothing_falsely() -> None:
    trace = RULES["false-overlap"].bad()
    assert not found(edited(trace, "collectives", asynchronous=0), "false-overlap")
    unknown = edited(trace, "collectives", asynchronous=None)
    assert "asynchronous" in reason(unknown, "false-overlap")


def test_compute_of_another_step_hides_nothing() -> None:
    run = Tiny()
    for step in range(4):
        run.step(0, step, step * 10_000, 10_000)
        if step % 2:
            run.kernel(0, step * 10_000 + 100, 9000)
        else:
            run.collective(0, "all_reduce", step * 10_000 + 100, 9000, size=1 << 26)
    assert not found(run.trace(), "exposed-communication")


def test_what_sticks_out_of_good_overlap_is_left_alone() -> None:
    def run(hidden_us: float) -> Measures:
        run = Tiny()
        for step in range(4):
            run.step(0, step, step * 10_000, 10_000)
            run.kernel(0, step * 10_000 + 100, 3000 + hidden_us)
            run.collective(0, "all_reduce", step * 10_000 + 3100, 5000, size=1 << 26)
        return run.trace()

    assert found(run(3500), "exposed-communication")
    assert not found(run(4200), "exposed-communication")


@pytest.mark.parametrize(
    ("machine", "ops", "doubt"),
    [
        ({"cores": 8, "usable_cores": 8, "seconds": 0.06, "busy_s": 0.06, "own_s": 0.03}, 1, None),
        ({}, 1, "nothing tells whether cores were idle"),
        ({}, 2, "has no match on other ranks"),  # of groups that the trace does not tell, say
    ],
)
def test_what_may_be_waiting_or_have_no_cores_may_not_be_hidden(
    machine: dict[str, float], ops: int, doubt: str | None
) -> None:
    ranks = [{"rank": rank, "machine": machine} for rank in range(2)] if machine else []
    run = Tiny(2, backend="gloo", manifest={"ranks": ranks} if ranks else None)
    for step, rank in product(range(6), range(2)):
        op = ("all_reduce", "all_gather")[rank % ops]
        run.step(rank, step, 10_000 * step, 10_000)
        run.op(rank, 10_000 * step, 5_000)
        run.collective(rank, op, 10_000 * step + 5_100, 4_000, size=1 << 20)
        run.gap(rank, 10_000 * step + 5_100, 4_000)
    (its,) = found(run.trace(), "exposed-communication")
    assert its.confidence == ("low" if doubt else "medium")
    assert (doubt or "compute could hide") in its.summary


@pytest.mark.parametrize(
    ("recorded", "first"), [(True, "nothing tells the sender"), (False, "rec")]
)
def test_what_is_received_from_any_rank_has_no_sender(recorded: bool, first: str) -> None:
    """The recorder tells all that a program says: here no ``src``."""
    machine = {"cores": 8, "usable_cores": 8}
    ranks = [{"rank": rank, "machine": machine} for rank in range(2)] if recorded else []
    run = Tiny(2, backend="gloo", manifest={"ranks": ranks} if ranks else None)
    for step in range(6):
        run.collective(0, "recv", 10_000 * step, 4_000, size=1 << 20)
        run.collective(1, "send", 10_000 * step + 3_000, 1_000, size=1 << 18, peer=0)
    trace = run.trace()
    assert why_unsure(trace, matched(trace).operations.ints("operation")).first.startswith(first)


@pytest.mark.parametrize("turns", [True, False])
def test_what_is_waiting_for_others_is_told_so(turns: bool) -> None:
    """An all_reduce takes half a millisecond; ranks are late by turns, or work alike."""
    work = [2000.0, 8000.0] if turns else [5000.0, 5000.0]
    late = ("all_reduce", lambda rank, step: work[(rank + step) % 2])
    run = gloo_loop(late, late, ranks=2, steps=12)
    (its,) = found(run, "exposed-communication")
    assert ("most of it is waiting for other ranks" in its.summary) == turns
    assert its.advice.startswith("make the ranks' work alike") == turns


# ── GPUs ───────────────────────────────────────────────────────────────────────────────────


def test_kernels_of_one_graph_are_not_launched_late() -> None:
    run = Tiny()
    for i in range(200):
        run.kernel(0, i * 30, 10, launch_ns=BASE_NS - 5_000)
    assert not found(run.trace(), "launch-gap")


@pytest.mark.parametrize(("beside_us", "fires"), [(115, True), (109, False), (350, False)])
def test_contention_is_a_slowdown_and_no_other_shape(beside_us: float, fires: bool) -> None:
    run = Tiny()
    for step in range(12):
        run.collective(0, "all_reduce", step * 1000 + 300, 390, size=1 << 24)
        run.kernel(0, step * 1000, 100)
        run.kernel(0, step * 1000 + 310, beside_us)
    loose = diagnose(
        run.trace(), select=["contention"], thresholds={"contention": {"min_step_share": 0.0}}
    )
    assert bool(loose.findings) == fires


@pytest.mark.parametrize(("longer_alone", "fires"), [(1, True), (9, False)])
def test_kernels_that_take_as_long_alone_are_no_evidence(longer_alone: int, fires: bool) -> None:
    """As those of backward, of the name of forward's, where no communication runs beside them."""
    run = Tiny()
    for step in range(12):
        run.collective(0, "all_reduce", step * 1000 + 500, 390, size=1 << 24)
        for alone in range(3):
            run.kernel(0, step * 1000 + 110 * alone, 100)
        run.kernel(0, step * 1000 + 330, 150 if step < longer_alone else 100)
        for beside in range(2):
            run.kernel(0, step * 1000 + 510 + 160 * beside, 150)
    assert bool(found(run.trace(), "contention")) == fires


def test_the_second_half_of_a_decomposition_is_in_its_place() -> None:
    run = Tiny()
    for step in range(12):
        at = {"launch_ns": BASE_NS + step * 1_000_000}
        run.kernel(0, step * 1000, 10)
        run.collective(0, "reduce_scatter", step * 1000 + 20, 400, size=1 << 24, **at)
        run.collective(0, "all_gather", step * 1000 + 422, 400, size=1 << 24, **at)
    assert not found(run.trace(), "head-of-line")


@pytest.mark.parametrize(("compute_us", "gain_us"), [(150, 150), (600, 400)])
def test_who_is_stuck_gains_no_more_than_the_compute_behind(
    compute_us: float, gain_us: float
) -> None:
    run = Tiny()
    for step in range(12):
        start = step * 2000
        at = {"launch_ns": BASE_NS + 1000 * start}
        run.collective(0, "reduce_scatter", start, 400, size=1 << 24, **at)
        run.collective(0, "all_gather", start + 400, 100, size=1 << 20, **at)
        run.kernel(0, start + 505, compute_us)
    (finding,) = found(run.trace(), "head-of-line")
    assert finding.cost_ns <= 12 * gain_us * 1000
    assert finding.cost_ns == pytest.approx(12 * gain_us * 1000, rel=0.1)


def test_what_runs_on_its_callers_stream_is_behind_what_that_called_before() -> None:
    """``async_op=False`` runs there: no group of its own would change that."""
    trace = RULES["head-of-line"].bad()
    assert not found(edited(trace, "kernels", stream=20), "head-of-line")


def test_since_when_an_operation_is_stuck_is_known_to_the_nanosecond() -> None:
    """Times of today have no room for that in a float."""
    (finding,) = found(RULES["head-of-line"].bad(), "head-of-line")
    (queued,) = (e for e in finding.evidence if e.name == "median time ready but queued")
    assert (finding.start_ns, queued.value) == (BASE_NS + 110_000, 402_000)


@pytest.mark.parametrize(("launch_us", "fires"), [(130, True), (300, False)])
def test_a_host_that_launches_slowly_resumes_slowly(launch_us: float, fires: bool) -> None:
    """It reads each result, and then takes so long for the next launch; 130 µs for the others."""
    run = Tiny()
    now = 0.0
    for _ in range(12):
        for _ in range(10):
            run.kernel(0, now + 5, 10, launch_ns=BASE_NS + round(1e3 * now))
            now += 130
        launched = {"launch_ns": BASE_NS + round(1e3 * now)}
        run.collective(0, "all_reduce", now + 5, 3000, size=1 << 20, **launched)
        launched = {"launch_ns": BASE_NS + round(1e3 * (now + 100))}
        run.copy(0, now + 3006, 2, kind="DtoH", size=4, memory="pageable", **launched)
        run.blocking_call(0, "cudaMemcpyAsync", now + 100, 2908)
        now += 3008 + launch_us
    assert bool(found(run.trace(), "host-sync")) == fires


def test_a_late_host_explains_that_its_gpu_has_nothing_to_run() -> None:
    run = Tiny(ranks=2)
    for step in range(12):
        for rank in range(2):
            start = step * 10_000 + 5_000 * rank  # rank 1 loads data for 5 ms
            run.kernel(rank, start + 10, 1000)
            run.collective(rank, "all_reduce", start + 1020, 5_200 - 5_000 * rank, size=1 << 20)
            run.step(rank, step, step * 10_000, 10_000)
    because = {one.rule: one.explained_by for one in diagnose(run.trace()).findings}
    assert because["host-late"] == "straggler"
    assert because["launch-gap"] == "host-late"


def test_a_root_that_only_then_does_its_own_work_is_late_for_the_next() -> None:
    run = Tiny(ranks=4)
    for step in range(12):
        for rank in range(4):
            start, root = step * 10_000, rank == 0
            run.step(rank, step, start, 10_000)
            run.kernel(rank, start + (4_200 if root else 10), 3_000)
            came = 100 if root else 4_000
            run.collective(rank, "reduce", start + came, 4_100 - came, size=1 << 20, root=0)
            came = 7_300 if root else 4_200
            run.collective(rank, "all_reduce", start + came, 7_400 - came, size=1 << 20)
    because = {one.rule: one.explained_by for one in diagnose(run.trace()).findings}
    assert because["early-root"] is None
    assert because["straggler"] == "early-root"


@pytest.mark.parametrize(("sent", "instead"), [(4, True), (1 << 22, False)])
def test_a_root_that_reduces_for_all_what_it_gathers(sent: int, instead: bool) -> None:
    """It is first to gather, computes for 4 ms of what came, and all wait for what it sends."""
    run = Tiny(ranks=3)
    for step in range(12):
        for rank in range(3):
            start, root = step * 12_000, rank == 0
            run.step(rank, step, start, 12_000)
            run.kernel(rank, start + 10, 1_000 if root else 3_000)
            came = 1_100 if root else 3_100
            run.collective(rank, "gather", start + came, 4_000 - came, size=1 << 22, root=0)
            if root:
                run.kernel(rank, start + 4_100, 4_000)
            came = 8_200 if root else 4_100
            run.collective(rank, "broadcast", start + came, 8_300 - came, size=sent, root=0)
    found = {one.rule: one for one in diagnose(run.trace()).findings}
    said = "of 4.19 MB that it gathers rank 0 makes 4 B for all: let every rank reduce its own part"
    assert found["late-root"].advice.startswith(said) == instead
    assert ("early-root" in found) != instead


def test_a_root_is_early_in_operations_of_one_size() -> None:
    """Two ranks: it is first in the small reduces, and last in as many large ones."""
    run = Tiny(ranks=2)
    for step in range(12):
        for rank, (small, large) in enumerate(((100, 8_000), (4_000, 5_000))):
            start = step * 10_000
            run.step(rank, step, start, 10_000)
            for came, until, size in ((small, 4_100, 1 << 20), (large, 8_100, 1 << 24)):
                run.collective(rank, "reduce", start + came, until - came, size=size, root=0)
    found = {one.rule: one for one in diagnose(run.trace()).findings}
    assert found["early-root"].summary.startswith("root rank 0 is first to 12 of its 12 reduces")


def in_vain(*, sends: bool, window_us: float = 60_000) -> Measures:
    """Both receive for 50 ms, and rank 1 sends, or nobody."""
    run = Tiny(ranks=2, backend="gloo")
    for rank in (0, 1) if not sends else (0,):
        run.collective(rank, "recv", 1000, 50_000, size=1 << 10, peer=1 - rank)
    if sends:
        run.collective(1, "send", 50_900, 100, size=1 << 10, peer=0)
    end_ns = BASE_NS + round(1e3 * window_us)
    return edited(run.trace(), "ranks", start_ns=BASE_NS, end_ns=end_ns)


def test_two_that_receive_first_wait_for_each_other() -> None:
    (finding,) = found(in_vain(sends=False), "late-sender")
    assert finding.summary.startswith("ranks 0 and 1 each wait up to 50 ms")
    assert "deadlock" in finding.advice
    assert finding.ranks == (0, 1)
    assert finding.cost_ns == pytest.approx(50_000_000, rel=0.01)


def test_a_send_that_came_or_was_not_recorded_is_not_missing() -> None:
    cut = replace(in_vain(sends=False), notes=(Note(RECORDED_APART, "cut to what all recorded"),))
    for its in (in_vain(sends=True), in_vain(sends=False, window_us=40_000), cut):
        assert not found(its, "late-sender")


@pytest.mark.parametrize("rule", ["contention", "host-sync", "launch-gap"])
def test_a_cpu_is_no_gpu(rule: str) -> None:
    assert "GPU" in reason(recorded("overlap/gloo-4"), rule)


@pytest.mark.parametrize(("backend", "confidence"), [("gloo", "low"), ("nccl", "medium")])
def test_turns_on_cores_of_which_nothing_is_known_are_doubted(
    backend: str, confidence: str
) -> None:
    run = Tiny(2, backend=backend)
    same = {"size": 1 << 20, **({"thread": 1, "asynchronous": 0} if backend == "gloo" else {})}
    for step in range(12):
        for rank in (0, 1):
            start = step * 10_000.0
            call = start + (8000 if step % 2 == rank else 2000)
            run.step(rank, step, start, 10_000)
            if backend == "gloo":
                run.op(rank, start, call - start)
                run.gap(rank, call, start + 10_000 - call)
            else:
                run.kernel(rank, start, call - 10 - start)
            run.collective(rank, "all_reduce", call, start + 9900 - call, **same)
    (finding,) = found(run.trace(), "jitter")
    assert finding.confidence == confidence
    assert ("nothing says how long they waited" in finding.summary) == (backend == "gloo")


@pytest.mark.parametrize("both", [True, False], ids=["exchange", "hand on"])
def test_neighbours_that_exchange_without_steps_are_no_pipeline(both: bool) -> None:
    """The borders of a grid go both ways at once; what a stage sends back follows what came."""
    run = Tiny(2)
    for turn in range(20):
        start = 10_000.0 * turn
        run.kernel(0, start, 4000)
        run.kernel(1, start + (0 if both else 4400), 4000)
        back = start + (4100 if both else 8500)
        its = {"size": 1 << 20}
        run.collective(0, "send", start + 4000, 390, peer=1, stream=30, **its)
        run.collective(1, "recv", start, 4390, peer=0, stream=30, **its)
        run.collective(1, "send", back, 390, peer=0, stream=31, **its)
        run.collective(0, "recv", start + 4000, back - start - 3610, peer=1, stream=31, **its)
    bubbles = found(run.trace(), "pipeline-bubble")
    assert [its.confidence for its in bubbles] == ([] if both else ["low"])
    # How many micro-batches a step has nothing tells.
    assert not [its for its in bubbles if "micro-batches" in its.summary]


def test_stages_that_wait_in_what_sums_up_all_gradients_drain_the_pipeline() -> None:
    """GPipe, two stages, two micro-batches: one waits for the first, the other behind its last."""
    run = Tiny(2)
    for step in range(6):
        start = 5_000.0 * step
        for rank in (0, 1):
            run.step(rank, step, start, 5_000)
        for batch in range(2):
            ready = start + 1_000 * (batch + 1)
            its = {"size": 1 << 20, "stream": 30}
            run.kernel(0, ready - 990, 970)
            run.collective(0, "send", ready - 10, 10, peer=1, **its)
            posted = ready - 10 if batch else start + 5
            run.collective(1, "recv", posted, ready - posted, peer=0, **its)
            run.kernel(1, ready + 6, 970)
        for rank, came in enumerate((2_010, 2_990)):
            run.collective(rank, "all_reduce", start + came, 3_000 - came, size=4)
    (bubble,) = bubbles_of(run.trace(), min_step_share=0.01)
    assert bubble.evidence[0].value == pytest.approx(6 * 980_000, rel=0.02)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("cudaDeviceSynchronize", "torch.cuda.synchronize()"),
        ("hipDeviceSynchronize", "torch.cuda.synchronize()"),
        ("cudaFree", "torch.cuda.empty_cache()"),
        ("hipFree", "torch.cuda.empty_cache()"),
        ("cudaMalloc", None),  # as steps do whose inputs grow
        ("cudaStreamSynchronize", None),  # as a copy of a value to the host does
    ],
)
def test_a_device_that_is_waited_for_again_and_again_waits_for_launches(
    name: str, advice: str | None
) -> None:
    """After each call the host needs 240 µs until it launches: with no call it would be ahead."""
    run = Tiny(ranks=2)
    for step, rank in product(range(10), range(2)):
        begun, now = 5_500 * step, 5_500.0 * step
        run.step(rank, step, begun, 5_500)
        for _ in range(4):
            for i in range(10):
                launched = BASE_NS + round(1e3 * (now + 50 * i))
                run.kernel(rank, now + 60 + 100 * i, 100, launch_ns=launched)
            run.blocking_call(rank, name, now + 500, 562)
            now += 1_300
        launched = BASE_NS + round(1e3 * now)
        run.collective(rank, "all_reduce", now + 10, 200, size=1 << 20, launch_ns=launched)
    findings = found(run.trace(), "host-sync")
    assert bool(findings) == bool(advice)
    for finding in findings:
        assert finding.summary.startswith(f"rank 0's host calls {name} 40 times")
        assert finding.advice.startswith(f"leave {advice} out of the step")


def test_a_barrier_that_synchronises_the_device_is_no_call_of_the_programs() -> None:
    """As NCCL's did before PyTorch 2.4."""
    run = Tiny(ranks=2)
    for step, rank in product(range(10), range(2)):
        begun = 4_000 * step
        run.step(rank, step, begun, 4_000)
        for part in range(2):
            now = begun + 2_000 * part
            run.kernel(rank, now + 10, 900, launch_ns=BASE_NS + 1_000 * now)
            run.op(rank, now + 20, 30, name="c10d::barrier", kind="communication")
            run.blocking_call(rank, "cudaDeviceSynchronize", now + 60, 860)
            launched = BASE_NS + 1_000 * (now + 25)
            run.collective(rank, "all_reduce", now + 912, 5, size=4, launch_ns=launched)
    assert not [its for its in found(run.trace(), "host-sync") if "cudaDevice" in its.summary]


def test_reading_a_result_right_behind_a_synchronisation_stays() -> None:
    """The host waits for its GPU anyway: what is saved without the call is nothing."""
    run = Tiny(ranks=2)
    for step, rank in product(range(12), range(2)):
        begun = 3_000 * step
        run.step(rank, step, begun, 3_000)
        for part in range(2):
            now = begun + 1_500 * part
            for i in range(10):
                run.kernel(rank, now + 10 + 100 * i, 99, launch_ns=BASE_NS + 1_000 * (now + 2 * i))
            run.blocking_call(rank, "cudaDeviceSynchronize", now + 30, 981)
            launched = BASE_NS + 1_000 * (now + 1_013)
            run.copy(
                rank, now + 1_016, 1, kind="DtoH", size=4, memory="pageable", launch_ns=launched
            )
            run.blocking_call(rank, "cudaMemcpyAsync", now + 1_013, 6)
        run.collective(
            rank, "all_reduce", begun + 2_600, 20, size=1 << 20,
            launch_ns=BASE_NS + 1_000 * (begun + 2_590),
        )  # fmt: skip
    assert not [its for its in found(run.trace(), "host-sync") if "cudaDevice" in its.summary]


def test_stages_that_only_call_more_are_no_culprits() -> None:
    """Between the ends of a pipeline hosts send and receive twice as often."""
    first, *others = diagnose(recorded("pipeline/nccl-4")).findings
    assert first.rule == "launch-gap"
    assert not {"late-sender", "straggler"} & {its.rule for its in others}


def test_ranks_take_no_turns_where_all_wait_for_one() -> None:
    findings = diagnose(recorded("reduce_scatter/nccl-4")).findings
    assert findings
    assert "jitter" not in {its.rule for its in findings}


def test_a_rank_that_another_hides_is_late_for_what_takes_it_longest() -> None:
    _, hidden = found(recorded("barrier/nccl-4"), "straggler")
    assert (hidden.cause, hidden.cost_ns) == ("host", 0)
    assert hidden.cost_on_top_ns is not None
    assert hidden.cost_on_top_ns > 6e6


@pytest.mark.parametrize("slab", [True, False])
def test_two_that_exchange_borders_are_no_pipeline_whatever_else_one_sends(slab: bool) -> None:
    """Three times both at once, and then rank 1 sends all that it has, in each of 12 rounds."""
    run = Tiny(ranks=2, backend="gloo")
    for begin in range(0, 120_000, 10_000):
        for at in range(begin, begin + 6_000, 2_000):
            for rank, (op, late) in product((0, 1), (("send", 0), ("recv", 10))):
                run.collective(rank, op, at + late, 500 - late, size=4096, peer=1 - rank)
        if slab:
            run.collective(1, "send", begin + 7_000, 500, size=1 << 22, peer=0)
            run.collective(0, "recv", begin + 7_000, 500, size=1 << 22, peer=1)
    assert not [*chains_of(messages_of(run.trace(), 6))]


@pytest.mark.parametrize(
    ("late", "how"),
    [(range(12), "every step by 30 ms"), ({*range(12)} - {3, 7, 11}, "steps by 22.5 ms in the")],
)
def test_who_is_not_late_in_some_steps_does_not_delay_every_one(
    late: Collection[int], how: str
) -> None:
    def works(rank: int, step: int) -> float:
        return 40_000.0 if rank and step in late else 10_000.0

    run = gloo_loop(("all_reduce", works), ranks=2, steps=12, size=1 << 20)
    (its,) = found(run, "straggler")
    assert its.summary.startswith(f"rank 1 delays {how}")
