"""Small copies one by one: which idle time is theirs, and whose it is otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from commtrace import reader
from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

HOST_RULES = ("copy-loop", "launch-gap", "host-sync", "pageable-copy")
TO_HOST = {"kind": "DtoH", "memory": "pageable"}
TO_DEVICE = {"kind": "HtoD", "source": "host", "destination": "cuda:0", "memory": "pageable"}


def at(time_us: float) -> int:
    return BASE_NS + round(1e3 * time_us)


def found(trace: Measures, *rules: str) -> list[Finding]:
    return list(diagnose(trace, select=rules or HOST_RULES).findings)


def names(trace: Measures) -> list[str]:
    return [one.rule for one in found(trace)]


def number(finding: Finding, name: str) -> float:
    (value,) = (one.value for one in finding.evidence if one.name == name)
    return value


def read_back(
    count: int, *, every_us: float = 40, start_us: float = 0, run: Tiny | None = None, **more: Any
) -> Tiny:
    """Copies of 2 µs that start 6 µs after their launch, each launched behind the one before."""
    run = run or Tiny()
    for i in range(count):
        begin = start_us + every_us * i
        run.copy(0, begin + 6, 2, **{**TO_HOST, "size": 4, "launch_ns": at(begin), **more})
    return run


# The sum of a tensor's elements, each fetched with .cpu(), as a profiler writes it.


def written(path: Path, count: int, *, launches: bool) -> Measures:
    def events() -> Iterator[dict[str, Any]]:
        for i in range(count):
            start, shared = 44.5 * i, {"ph": "X", "pid": 0}
            ids = {"correlation": i + 1}
            if launches:
                for name, ts, dur in (
                    ("cudaMemcpyAsync", start, 9),
                    ("cudaStreamSynchronize", start + 9, 8),
                ):
                    args = ids if dur == 9 else {"correlation": 100_000 + i}
                    yield {**shared, "cat": "cuda_runtime", "name": name, "tid": 1, "ts": ts,
                           "dur": dur, "args": args}  # fmt: skip
            yield {**shared, "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)",
                   "tid": 7, "ts": start + 8, "dur": 3,
                   "args": {"device": 0, "stream": 7, "bytes": 4, **ids}}  # fmt: skip

    (path / "rank0.json").write_text(json.dumps({"traceEvents": list(events())}))
    return reader.read([path])


def test_a_tensor_that_is_fetched_element_by_element(tmp_path: Path) -> None:
    (finding,) = found(written(tmp_path, 4096, launches=True))
    assert finding.summary == (
        "4,096 copies of 4 bytes to the host, one by one, stall rank 0's cuda:0 for 41.5 µs each: "
        "170 ms in all"
    )
    assert number(finding, "idle beside them") == 4095 * 41_500
    assert finding.cost_ns == round(4095 * 41_500 * 4095 / 4096)
    assert finding.confidence == "high"
    assert ".tolist()" in finding.advice


def test_without_launches_nobody_knows_what_a_copy_held_up(tmp_path: Path) -> None:
    trace = written(tmp_path, 100, launches=False)
    diagnosis = diagnose(trace, select=["copy-loop"])
    assert not diagnosis.findings
    assert "needs launches" in diagnosis.skipped["copy-loop"]


def test_nine_copies_are_too_few() -> None:
    skipped = diagnose(read_back(9).trace(), select=["copy-loop"]).skipped
    assert skipped["copy-loop"].startswith("needs 10 copies of less than 1 MB")
    assert skipped["copy-loop"].endswith("has 9")
    assert found(read_back(10).trace(), "copy-loop")


# Which idle time counts.


def test_a_kernel_and_its_result_in_turn_are_one_finding() -> None:
    """Launch 0, kernel 5–8, copy launched at 20, copy 26–28, 12 µs later the next launch."""
    run = Tiny()
    for i in range(200):
        run.kernel(0, 40 * i + 5, 3, launch_ns=at(40 * i))
        run.copy(0, 40 * i + 26, 2, size=4, launch_ns=at(40 * i + 20), **TO_HOST)
    (finding,) = found(run.trace())
    assert finding.rule == "copy-loop"
    behind, before = 199 * 17_000, 199 * 18_000  # nothing is behind the last, before the first
    assert number(finding, "idle beside them") == behind + before


def test_what_had_been_launched_is_not_held_up_by_the_copy() -> None:
    run = Tiny()
    for i in range(200):
        run.kernel(0, 40 * i + 5, 3, launch_ns=at(40 * i - 30))
        run.copy(0, 40 * i + 26, 2, size=4, launch_ns=at(40 * i - 25), **TO_HOST)
    assert not found(run.trace(), "copy-loop")


@pytest.mark.parametrize("where", [{"stream": 8}, {"device": "cuda:1"}])
def test_time_in_which_the_rank_works_elsewhere_costs_nothing(where: dict[str, Any]) -> None:
    run = read_back(200)
    for i in range(200):
        run.kernel(0, 40 * i + 7, 39, launch_ns=at(40 * i - 1), **where)
    assert not found(run.trace())


def test_what_every_kernel_waits_for_its_launch_is_not_the_copies() -> None:
    """Among kernels that wait 12 µs each, the next behind a copy waits 14."""
    run, now = Tiny(), 0.0
    for i in range(1000):
        if i % 5 == 0:
            run.copy(0, now + 6, 1, size=4, memory="pinned", kind="DtoH", launch_ns=at(now))
            now += 15
        run.kernel(0, now + 6, 3, launch_ns=at(now))
        now += 15
    findings = {one.rule: one for one in found(run.trace())}
    copies = findings["copy-loop"]
    assert number(copies, "usual gap before other work") == 12_000
    assert copies.cost_ns == pytest.approx(199 * 12_000 + 200 * 2_000, rel=0.01)
    assert findings["launch-gap"].cost_ns == 800 * 12_000
    assert findings["launch-gap"].explained_by is None


def test_a_host_that_pauses_longer_does_something_else() -> None:
    """It loads for 3 ms behind each: a stall, which launch-gap reports."""
    (finding,) = found(read_back(20, every_us=3000).trace())
    assert finding.rule == "launch-gap"


def test_one_copy_a_step_behind_work_that_was_launched_ahead_is_not_late() -> None:
    """The host prepares a batch for 0.6 ms: it stalls, and not for the copy behind that."""
    run = Tiny()
    for step in range(20):
        start = 5000 * step
        run.copy(0, start + 606, 2, size=4096, launch_ns=at(start + 600), **TO_DEVICE)
        for kernel in range(4):
            launched = at(start + 610 + 5 * kernel)
            run.kernel(0, start + 616 + 1090 * kernel, 1090, launch_ns=launched)
    (finding,) = found(run.trace())
    assert finding.rule == "launch-gap"
    assert "stalls 19 times" in finding.summary


def test_copies_within_a_device_block_nobody() -> None:
    inside = {"kind": "DtoD", "memory": None, "destination": "cuda:0"}
    trace = read_back(200, **inside).trace()
    assert names(trace) == ["launch-gap"]
    assert diagnose(trace, select=["copy-loop"]).skipped


def test_copies_of_glooss_collectives_are_theirs() -> None:
    """gloo takes tensors of a GPU to the host, reduces them, and brings them back."""
    run = read_back(200)
    for i in range(200):
        where = {"device": "cpu", "launch_ns": at(40 * i - 1)}
        run.collective(0, "all_reduce", 40 * i + 9, 30, size=4, **where)
    diagnosis = diagnose(run.trace(), select=["copy-loop"])
    assert not diagnosis.findings
    assert diagnosis.skipped["copy-loop"].endswith("has 0")


def test_a_collective_on_the_host_behind_a_copy_is_not_the_copys_time() -> None:
    run = read_back(200)
    for i in range(200):
        where = {"device": "cpu", "launch_ns": at(40 * i + 10)}
        run.collective(0, "all_reduce", 40 * i + 10, 29, size=4, **where)
    (finding,) = found(run.trace(), "copy-loop")
    assert number(finding, "idle beside them") == 199 * 9_000


# What is said of which copies.


def test_numbers_sent_to_the_device_one_by_one_are_to_be_sent_at_once() -> None:
    (finding,) = found(read_back(200, **TO_DEVICE).trace())
    assert "200 copies of 4 bytes from the host" in finding.summary
    assert finding.advice.startswith("send the values at once")


def test_copies_both_ways_are_one_finding() -> None:
    run = read_back(100, every_us=80)
    read_back(100, every_us=80, start_us=40, run=run, **TO_DEVICE, size=8)
    (finding,) = found(run.trace())
    assert finding.summary.startswith("200 copies of 6 bytes (median) to and from the host")
    assert "torch.stack" in finding.advice
    assert "torch.full" in finding.advice


def test_large_copies_are_pageable_copys() -> None:
    assert not found(read_back(200, size=1_000_000).trace(), "copy-loop")


def test_every_rank_with_the_loop_is_named() -> None:
    run = Tiny(ranks=2)
    for rank in range(2):
        for i in range(100):
            run.copy(rank, 40 * i + 6, 2 + rank, size=4, launch_ns=at(40 * i), **TO_HOST)
    (finding,) = found(run.trace())
    assert finding.ranks == (0, 1)
    assert "rank 0's" in finding.summary


# Beside other faults.


def test_a_loop_of_kernels_behind_it_is_another_finding() -> None:
    run = read_back(400)
    for i in range(400):
        run.kernel(0, 16_000 + 20 * i, 3, launch_ns=at(16_000 + 20 * i - 6))
    copies, kernels = found(run.trace())
    assert (copies.rule, kernels.rule) == ("copy-loop", "launch-gap")
    assert kernels.explained_by is None
    assert kernels.cost_ns == 399 * 17_000


def reduced_and_read(reads: int) -> Measures:
    """A step reduces its loss while the host is ahead, and reads it, then other numbers."""
    run, now = Tiny(), 0.0
    for _ in range(12):
        for kernel in range(30):
            run.kernel(0, now + 6 + 100 * kernel, 100, launch_ns=at(now + 5 * kernel))
        done = now + 3406
        run.collective(0, "all_reduce", now + 3006, 400, size=1 << 20, launch_ns=at(now + 150))
        run.copy(0, done, 2, size=4, launch_ns=at(now + 160), **TO_HOST)
        read_back(reads, start_us=done + 42, every_us=60, run=run)
        now = done + 42 + 60 * reads
    return run.trace()


@pytest.mark.parametrize(
    ("long_us", "inference", "fires"),
    [
        (1000, False, True),
        (2500, False, False),
        (1000, True, False),  # which waits for each step's result anyway
    ],
)
def test_a_host_that_regains_its_lead_slowly_has_the_copies_to_thank(
    long_us: float, inference: bool, fires: bool
) -> None:
    """A long kernel, its result read, and short ones, each launched when the last was done."""
    run, now = Tiny(2), 0.0
    for number in range(20):
        read = now + long_us
        for rank in (0, 1):
            if inference and number % 2 == 0:
                run.step(rank, number // 2, now, 2 * (long_us + 210))
            run.kernel(rank, now + 5, long_us, launch_ns=at(now))
            run.copy(rank, read + 6, 2, size=4, launch_ns=at(now + 10), **TO_HOST)
            run.blocking_call(rank, "cudaStreamSynchronize", now + 12, long_us - 2)
            for i in range(10):
                launch = read + 45 + 15 * i
                run.kernel(rank, launch + 5, 5, launch_ns=at(launch))
            run.collective(rank, "all_reduce", read + 200, 10, size=4, launch_ns=at(read + 195))
        now = read + 210
    copies = found(run.trace(), "copy-loop")
    assert bool(copies) == fires  # 42 µs of 1210 are idle beside each copy, 145 in all
    if fires:
        assert copies[0].cost_ns == pytest.approx(19 * 140e3, rel=0.1)


def test_a_loop_behind_a_collective_is_not_the_collectives() -> None:
    (finding,) = found(reduced_and_read(50))
    assert finding.rule == "copy-loop"


def test_a_collective_that_is_read_explains_its_copy() -> None:
    """The host takes 95 µs for its next launch behind it, and as long for the next three."""
    run, now = Tiny(), 0.0
    for _ in range(12):
        for kernel in range(10):
            run.kernel(0, now + 6 + 50 * kernel, 50, launch_ns=at(now + 5 * kernel))
        run.collective(0, "all_reduce", now + 506, 400, size=1 << 20, launch_ns=at(now + 50))
        run.copy(0, now + 907, 2, size=4, launch_ns=at(now + 55), **TO_HOST)
        run.blocking_call(0, "cudaMemcpyAsync", now + 55, 854)
        now += 909
        for _ in range(4):
            now += 95
            run.kernel(0, now + 5, 2, launch_ns=at(now))
    because = {one.rule: one.explained_by for one in found(run.trace())}
    assert because == {"host-sync": None, "copy-loop": "host-sync"}


def test_a_rank_that_reads_in_a_loop_is_late_because_of_it() -> None:
    """Rank 0 alone logs 50 numbers in each step; the other waits for it."""
    run = Tiny(ranks=2)
    for step in range(12):
        start = 10_000 * step
        for rank in range(2):
            run.step(rank, step, start, 10_000)
            run.kernel(rank, start + 5, 1000)
        read_back(50, every_us=80, start_us=start + 1010, run=run)
        run.collective(0, "all_reduce", start + 5050, 150, size=1 << 20)
        run.collective(1, "all_reduce", start + 1010, 4190, size=1 << 20)
    findings = found(run.trace(), "straggler", "host-late", "copy-loop")
    because = {one.rule: one.explained_by for one in findings}
    assert because["straggler"] is None
    assert because["copy-loop"] == "host-late"


@pytest.mark.parametrize(("update", "stalls"), [(False, 0), (True, 20)])
def test_a_step_of_inference_needs_one_copy_each_way(update: bool, stalls: int) -> None:
    """Of ten steps with one to the device and one from it a training loop needs one in all."""
    run = Tiny()
    for step in range(10):
        begin = 1000 * step
        run.step(0, step, begin, 1000)
        if update:
            run.step(0, step, begin + 500, 10, label="Optimizer.step#SGD.step")
        for start, way in ((100, TO_DEVICE), (600, TO_HOST)):
            run.copy(0, begin + start + 300, 2, **way, size=4, launch_ns=at(begin + start + 294))
    its = found(run.trace(), "copy-loop")
    assert [number(one, "copies with idle time beside them") for one in its] == [stalls] * bool(
        stalls
    )


@pytest.mark.parametrize(
    ("marks", "update", "kernels"),
    [
        ("steps", False, 1),
        ("steps", True, 1),
        ("vllm", False, 1),
        (None, False, 1),
        (None, False, 60),
        ("backward", False, 60),
    ],
)
def test_what_a_host_does_between_result_and_next_input_is_no_copys(
    marks: str | None, update: bool, kernels: int
) -> None:
    """Decoding: 0.8 ms of scheduling, three copies in, kernels for 5 ms, one copy out.

    Where nothing marks a step the copies may be of anything, but what is told behind many kernels.
    """
    run = Tiny()
    for step in range(6):
        begin = 6_000 * step
        if marks == "steps":
            run.step(0, step, begin, 6_000)
        if marks == "vllm":
            run.step(0, step, begin + 10, 810, label="gpu_model_runner: preprocess")
        if update:
            run.step(0, step, begin + 900, 10, label="Optimizer.step#SGD.step")
        for start in (800, 810, 820):
            its = {"size": 512, "launch_ns": at(begin + start - 6)}
            run.copy(0, begin + start, 2, **TO_DEVICE, **its)
        if marks == "backward":
            run.op(0, begin + 826, 5, name="autograd::engine::evaluate_function: MmBackward0")
        for number in range(kernels):
            its = 5_000 / kernels
            run.kernel(0, begin + 830 + number * its, its, launch_ns=at(begin + 824))
        run.copy(0, begin + 5_831, 2, **TO_HOST, size=512, launch_ns=at(begin + 840))
    told = update or marks == "backward" or (marks is None and kernels == 1)
    assert bool(found(run.trace(), "copy-loop")) == told


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_copies_beside_collectives_of_objects_are_theirs(dtype: str) -> None:
    """all_gather_object: a length there and back, then bytes, which each rank unpickles."""
    run = Tiny(ranks=2)
    for step, rank in product(range(6), range(2)):
        begin = 700 * step
        run.step(rank, step, begin, 700)
        run.step(rank, step, begin + 10, 10, label="Optimizer.step#SGD.step")
        for start, way, size in ((100, TO_DEVICE, 8), (160, TO_HOST, 8), (340, TO_HOST, 60_000)):
            launched = {"launch_ns": at(begin + start - 6)}
            run.copy(rank, begin + start, 2, **{**way, "size": size, **launched})
        its = {"size": 16, "dtype": "int64", "launch_ns": at(begin + 104)}
        run.collective(rank, "all_gather", begin + 110, 40, **its)
        its = {"size": 120_000, "dtype": dtype, "launch_ns": at(begin + 204)}
        run.collective(rank, "all_gather", begin + 210, 100, **its)
    (finding,) = found(run.trace(), "copy-loop")
    assert ("send tensors" in finding.advice) == (dtype == "uint8")


@pytest.mark.parametrize("steps", [True, False])
def test_a_loops_last_copy_fetches_what_all_brought(steps: bool) -> None:
    """20 of 38 µs in each of six steps: 19 are too many; without steps all but one of all."""
    run = Tiny()
    for step in range(6):
        begin = 2_000 * step
        if steps:
            run.step(0, step, begin, 2_000)
            run.step(0, step, begin + 1_500, 10, label="Optimizer.step#SGD.step")
        for number in range(20):
            start = begin + 40 * number
            run.copy(0, start + 38, 2, **TO_HOST, size=4, launch_ns=at(start))
        run.kernel(0, begin + 800, 1_200, launch_ns=at(begin + 790))
    (finding,) = found(run.trace(), "copy-loop")
    too_many = 6 * 19 if steps else 6 * 20 - 1
    idle_ns = 38e3 * 19 / 20  # in the mean: none before the first of a step, behind a kernel
    assert finding.cost_ns == pytest.approx(too_many * idle_ns, rel=0.01)
