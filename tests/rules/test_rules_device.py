"""Why a device computes nothing: exposed communication and late launches, edge by edge."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from commtrace.diagnosis import Diagnosis, Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny


def at(time_us: float) -> int:
    return BASE_NS + round(1e3 * time_us)


def found(trace: Measures, rule: str) -> list[Finding]:
    return list(diagnose(trace, select=[rule]).findings)


def number(finding: Finding, name: str) -> float:
    (value,) = (one.value for one in finding.evidence if one.name == name)
    return value


# exposed-communication


def in_turn(compute: int, *, reduced: int = 400, launched: int = 10, **told: object) -> Tiny:
    """Ten times 100 µs of compute, an all_reduce, and compute from ``compute`` µs on."""
    run = Tiny()
    for i in range(10):
        start = 1000 * i
        run.kernel(0, start, 100)
        if told:
            run.collective(0, "all_reduce", start + 100, reduced, launch_ns=at(start + 5), **told)
        run.kernel(0, start + compute, 300, launch_ns=at(start + launched))
    return run


def test_operations_that_are_unknown_count_in_what_is_exposed() -> None:
    run = in_turn(500)
    for i in range(10):
        run.collective(0, "all_reduce", 1000 * i + 100, 300, size=1 << 20)
        run.collective(0, None, 1000 * i + 400, 100, name="ncclDevKernel_Generic")  # type: ignore[arg-type]
    (finding,) = found(run.trace(), "exposed-communication")
    assert number(finding, "share of all_reduce in what is exposed") == pytest.approx(75)


def test_what_a_stream_waits_for_at_once_is_to_be_started_asynchronously() -> None:
    (finding,) = found(in_turn(500, size=1 << 20).trace(), "exposed-communication")
    assert finding.advice.startswith("start all_reduce asynchronously")


@pytest.mark.parametrize("asynchronous", [1, None])
def test_what_is_asynchronous_already_is_not_advised_again(asynchronous: int | None) -> None:
    """Compute that was launched later runs beside it, or the trace says so."""
    run = in_turn(500, size=1 << 20, asynchronous=asynchronous)
    for i in range(0 if asynchronous else 10):
        run.kernel(0, 1000 * i + 150, 20, launch_ns=at(1000 * i + 110), stream=8)
    (finding,) = found(run.trace(), "exposed-communication")
    assert finding.advice.startswith("all_reduce runs asynchronously already")


@pytest.mark.parametrize(("world", "size", "confidence"), [(2, 2, "low"), (2, 1, "medium")])
def test_who_lacks_a_trace_file_may_be_waited_for(world: int, size: int, confidence: str) -> None:
    """Unless the operations are of a group whose ranks are all there."""
    run = in_turn(500, size=1 << 20, group_size=size).trace()
    ranks = run.rows("ranks")
    ranks = ranks.table.rows({**ranks.columns, "world_size": np.array([world])})
    (finding,) = found(replace(run, ranks=ranks), "exposed-communication")
    assert finding.confidence == confidence
    assert ("waiting for ranks without" in finding.summary) == (confidence == "low")
    assert finding.advice.startswith("see with the files of all ranks") == (confidence == "low")


def test_copies_on_a_stream_of_their_own_do_not_make_a_call_asynchronous() -> None:
    """As FSDP's of the parameters that it gathers next, while compute waits for an all_reduce."""
    run = in_turn(500, size=1 << 20)
    for i in range(10):
        run.kernel(0, 1000 * i + 150, 10, launch_ns=at(1000 * i + 110), stream=8)
    (finding,) = found(run.trace(), "exposed-communication")
    assert finding.advice.startswith("start all_reduce asynchronously")


def test_compute_that_had_begun_when_a_call_started_runs_beside_it() -> None:
    run = in_turn(500, size=1 << 20)
    for i in range(10):
        run.kernel(0, 1000 * i + 90, 60, launch_ns=at(1000 * i + 80), stream=8)
    (finding,) = found(run.trace(), "exposed-communication")
    assert finding.advice.startswith("all_reduce runs asynchronously already")


def test_only_the_calls_that_are_not_asynchronous_are_advised() -> None:
    run = in_turn(500, size=1 << 20, asynchronous=1)
    for row in run.rows["collectives"][:3]:
        row["asynchronous"] = 0
    (finding,) = found(run.trace(), "exposed-communication")
    assert "start the 3 of 10 all_reduces that hold up their device" in finding.advice


def of_late_launches(*, launched: int) -> Diagnosis:
    """All_reduces that outlast the compute beside them, and the next, launched then, or late."""
    run = in_turn(500, launched=launched, size=1 << 20, asynchronous=1)
    limits = {"launch-gap": {"min_gaps": 5}}
    for i in range(10):
        for gap in range(10):
            start = 1000 * i + 805 + 19 * gap
            run.kernel(0, start, 1, launch_ns=at(start - 2))
    return diagnose(run.trace(), select=["exposed-communication", "launch-gap"], thresholds=limits)


def test_compute_that_is_launched_too_late_cannot_hide_anything() -> None:
    """Replayed without waiting nothing is saved: the host is what the device waits for."""
    diagnosis = of_late_launches(launched=490)
    assert {one.rule for one in diagnosis.findings} == {"launch-gap"}
    assert "the replayed run gains only 72 µs" in diagnosis.skipped["exposed-communication"]


@pytest.mark.parametrize("marked", [10, 3])
def test_shares_are_of_the_run_where_steps_hold_too_little(marked: int) -> None:
    """In each of ten iterations 4 ms of compute and 5.5 ms of what tensor parallelism reduces."""
    run = Tiny(ranks=2)
    run.groups = {"TENSOR_MODEL_PARALLEL_GROUP": (0, 1)}
    for rank in range(2):
        for turn in range(10):
            start = 10_000 * turn
            if turn < marked:
                run.step(rank, turn + 1, start, 10_000)
            run.kernel(rank, start, 4_000)
            its = {"size": 1 << 20, "group": "TENSOR_MODEL_PARALLEL_GROUP"}
            run.collective(rank, "all_reduce", start + 4_000, 5_500, launch_ns=at(start), **its)
    (finding,) = found(run.trace(), "exposed-communication")
    assert finding.summary.startswith("55 ms of communication")
    assert f"55 % of the {'steps' if marked == 10 else 'run'}'" in finding.summary


def test_compute_that_is_launched_early_could_hide_communication() -> None:
    findings = {one.rule: one for one in of_late_launches(launched=10).findings}
    exposed = findings["exposed-communication"]
    assert exposed.explained_by is None
    assert number(exposed, "of it before the next compute was launched") == 0


# launch-gap


def late(starts: list[float], took: float = 5) -> Tiny:
    """Kernels that are launched 5 µs before they start."""
    run = Tiny()
    for start in starts:
        run.kernel(0, start, took, launch_ns=at(start - 5))
    return run


def test_gaps_are_told_by_their_mean_whose_product_is_the_cost() -> None:
    starts = [0.0]
    for i in range(120):
        starts.append(starts[-1] + (25 if i % 2 else 105))
    (finding,) = found(late(starts).trace(), "launch-gap")
    assert "waits for a launch 120 times, 60 µs on average: 7.2 ms" in finding.summary
    assert finding.cost_ns == 120 * 60_000


def test_gaps_shorter_than_what_runs_between_them_count_as_well() -> None:
    """200 kernels of 20 µs, one launched every 30 µs: a third of the time the GPU has no work."""
    (finding,) = found(late([30.0 * i for i in range(200)], took=20).trace(), "launch-gap")
    assert "waits for a launch 199 times, 10 µs on average" in finding.summary
    assert finding.cost_ns == 199 * 10_000


def test_many_small_collectives_are_to_be_bucketed() -> None:
    run = Tiny()
    for i in range(120):
        start = 40 * i
        run.kernel(0, start, 5)
        run.collective(0, "all_reduce", start + 25, 5)
    (finding,) = found(run.trace(), "launch-gap")
    assert finding.advice.startswith(
        "send the 120 communication kernels, half of which take 5 µs at most"
    )
    (finding,) = found(late([20.0 * i for i in range(240)]).trace(), "launch-gap")
    assert finding.advice.startswith("fuse kernels")


@pytest.mark.parametrize(
    ("group", "ops", "said"),
    [
        ("tp", ["all_reduce"], "fuse kernels"),  # the next operator needs each one's result
        ("dp_shard", ["all_gather", "reduce_scatter"], "larger ones (more layers in each unit"),
        ("dp", ["all_gather"], "larger ones (buckets, one flat tensor)"),
    ],
)
def test_what_cannot_wait_for_more_is_not_to_be_bucketed(
    group: str, ops: list[str], said: str
) -> None:
    run = Tiny(ranks=2)
    run.groups = {group: (0, 1)}
    for rank in (0, 1):
        for i in range(120):
            start = 40 * i
            run.kernel(rank, start, 5)
            run.collective(rank, ops[i % len(ops)], start + 25, 5, size=1 << 20, group=group)
    (finding,) = found(run.trace(), "launch-gap")
    assert said in finding.advice


def test_a_host_that_stalls_is_told_with_what_it_did() -> None:
    run = late([0, 10, 20, 5030, 5040, 5050, 8060, 8070])
    run.step(0, 0, 40, 4950, label="loading")
    (finding,) = found(run.trace(), "launch-gap")
    assert "host stalls 2 times for over 1 ms" in finding.summary
    assert finding.summary.endswith("8.01 ms in all, mostly in 'loading'")
    assert finding.cost_ns == 8_010_000
    assert "5 ms from 25 µs after" in finding.advice


def test_hosts_that_stall_in_turn_cost_what_all_of_their_stalls_do() -> None:
    """In each of twelve steps one of two stalls for 6 ms, the first before any work."""
    run = Tiny(ranks=2)
    for step in range(12):
        begin, over = 9_000 * step, 9_000 * step + 8_980
        for rank in (0, 1):
            start = begin + 6_000 * (step % 2 == rank)
            came = start + 2_020
            run.step(rank, step, begin, 9_000)
            run.kernel(rank, start + 10, 2_000)
            run.collective(rank, "all_reduce", came, over - came, size=1 << 26)
            run.blocking_call(rank, "cudaDeviceSynchronize", came + 10, over - came)
    (finding,) = found(run.trace(), "launch-gap")
    assert "stalls 6 times for over 1 ms" in finding.summary
    assert finding.summary.endswith("36.2 ms in all (rank 0, too)")
    assert finding.cost_ns == pytest.approx(11 * 6_000_000, rel=0.01)


def test_a_host_that_stalls_in_its_data_loader_is_to_load_faster() -> None:
    run = late([0, 10, 20, 5030, 5040, 5050])
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    run.step(0, 0, 40, 4950, label=loader)
    (finding,) = found(run.trace(), "launch-gap")
    assert finding.summary.endswith("mostly in 'enumerate(DataLoader…LoaderIter.__next__'")
    assert finding.advice.startswith("speed up data loading: more workers (num_workers)")


def test_a_host_that_allocates_meanwhile_is_told_so() -> None:
    """Of the 5 ms without work it frees and allocates memory for 2.6 ms."""
    run = late([0, 10, 20, 5030, 5040, 5050])
    run.blocking_call(0, "cudaFree", 1000, 600)
    run.blocking_call(0, "cudaMalloc", 1700, 2000)
    (finding,) = found(run.trace(), "launch-gap")
    assert finding.advice.startswith("meanwhile the host is in cudaMalloc and cudaFree for 2.6 ms")
    assert "expandable_segments:True" in finding.advice


def test_memory_of_the_host_or_of_a_pool_is_no_memory_of_the_gpu() -> None:
    run = late([0, 10, 20, 5030, 5040, 5050])
    run.blocking_call(0, "cudaMallocHost", 1000, 3000)
    (finding,) = found(run.trace(), "launch-gap")
    assert finding.advice.startswith("look at what the host does meanwhile")


def test_a_device_that_runs_what_lost_its_launch_is_not_idle() -> None:
    run = late([0, 10, 20, 5030, 5040])
    run.kernel(0, 25, 5000, launch_ns=None)
    assert not found(run.trace(), "launch-gap")


def test_a_host_that_drives_another_gpu_meanwhile_stalls_for_the_rest_only() -> None:
    run = late([0, 10, 20, 5030, 5040])
    run.kernel(0, 2025, 2000, launch_ns=at(2020), device="cuda:1")
    run.kernel(0, 4025, 995, launch_ns=at(4020), device="cuda:1")
    (finding,) = found(run.trace(), "launch-gap")
    assert (finding.cost_ns, finding.end_ns) == (2_000_000, at(2025))
    for start in range(30, 2025, 300):
        run.kernel(0, start, 200, launch_ns=at(start - 5), device="cuda:1")
    assert not found(run.trace(), "launch-gap")


def test_a_gpu_that_waits_in_a_collective_for_the_other_has_no_work() -> None:
    run = late([0, 10, 20, 5030, 5040])
    for device, start, took in (("cuda:1", 30, 5030), ("cuda:0", 5050, 10)):
        run.collective(0, "all_reduce", start, took, device=device)
    (finding,) = found(run.trace(), "launch-gap")
    assert finding.cost_ns == pytest.approx(5_005_000, rel=0.01)


def test_what_the_hosts_own_threads_do_is_no_work_of_a_gpu() -> None:
    run = late([0, 10, 20, 5030, 5040])
    run.collective(0, "barrier", 30, 4900, device="cpu")
    assert found(run.trace(), "launch-gap")


def test_work_that_was_launched_is_no_stall_of_the_host() -> None:
    run = late([0, 10, 20])
    run.kernel(0, 5030, 5, launch_ns=at(16))
    assert not found(run.trace(), "launch-gap")


# unfit-trace


def held_up(**elsewhere: str) -> Tiny:
    """Launched at 16 µs, a kernel starts at 5 ms, and nothing shows why."""
    run = late([0, 10, 20])
    run.kernel(0, 5025, 5, launch_ns=at(16))
    if elsewhere:
        run.kernel(0, 25, 5000, launch_ns=at(16), **elsewhere)
    return run


def test_what_launched_work_waits_for_is_missing() -> None:
    (finding,) = found(held_up().trace(), "unfit-trace")
    assert "is idle for 5 ms (once, over 1 ms) though work is launched" in finding.summary
    assert finding.cost_ns == 0, "events that are missing cost nothing"
    assert "record again with all activities" in finding.advice


def test_several_ranks_whose_gpus_wait_so_are_one_finding() -> None:
    run = Tiny(3)
    for rank, until in ((0, 5_025), (1, 6_025), (2, 30)):
        for start in (0, 10, 20, until):
            run.kernel(rank, start, 5, launch_ns=at(min(start - 5, 16)))
    every = found(run.trace(), "unfit-trace")
    (finding,) = (one for one in every if "though work is launched" in one.summary)
    assert finding.summary.startswith("rank 1's cuda:0 is idle for 6 ms")
    assert finding.summary.endswith(" (rank 0, too)")
    assert finding.ranks == (0, 1)


def test_before_what_a_graph_runs_its_other_kernels_may_be_missing() -> None:
    run = held_up()
    run.kernel(0, 5035, 5, launch_ns=at(16))
    (finding,) = found(run.trace(), "unfit-trace")
    assert "5 ms of it before or within CUDA graphs" in finding.summary
    assert "--cuda-graph-trace=node" in finding.advice


def test_another_device_may_be_what_launched_work_waits_for() -> None:
    assert not found(held_up(device="cuda:1").trace(), "unfit-trace")


@pytest.mark.parametrize(("took_us", "said"), [(2000, True), (200, False)])
def test_what_crawls_beside_missing_ranks_waits_or_has_a_bad_link(
    took_us: float, said: bool
) -> None:
    """4 MB on 4 ranks in 2 ms are 3 GB/s, in 0.2 ms 30."""
    run = Tiny(ranks=4)
    for i in range(5):
        run.collective(0, "all_reduce", 3000 * i, took_us, size=4_000_000)
    trace = run.trace()
    (finding,) = found(replace(trace, ranks=trace.rows("ranks").take(slice(1))), "unfit-trace")
    assert ("10 ms in all_reduce at 3 GB/s bus bandwidth" in finding.summary) == said
