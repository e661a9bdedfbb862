"""Hosts that stall in a call while their GPU has nothing to run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commtrace.intervals import union
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.rules._stalls import known_work
from commtrace.run import load
from commtrace.synthetic import BASE_NS, Tiny

STEPS = 6


def frees(took_us: float) -> Measures:
    """In each step 10 ms of compute; the host is in cudaFree, which waits for it, and longer."""
    run, length = Tiny(2), 16_130 + took_us
    for step in range(STEPS):
        for rank in range(2):
            at = step * length
            run.step(rank, step, at, length)
            run.kernel(rank, at + 100, 10_000, launch_ns=BASE_NS + round(1000 * (at + 50)))
            run.blocking_call(rank, "cudaFree", at + 60, 10_040 + took_us)
            resumed = at + 10_110 + took_us
            launched = BASE_NS + round(1e3 * resumed)
            run.collective(rank, "all_reduce", resumed + 10, 1000, size=1 << 20, launch_ns=launched)
            run.kernel(rank, resumed + 1020, 5000, launch_ns=launched + 5000)
            run.blocking_call(rank, "cudaDeviceSynchronize", resumed + 10, 6020)
    return run.trace()


@pytest.mark.parametrize("took_us", [3000, 1200])
def test_what_a_call_takes_beyond_what_it_waits_for_is_saved(took_us: float) -> None:
    (its,) = diagnose(frees(took_us), select=["launch-gap"]).findings
    assert its.ranks == (0, 1)
    assert "the host is in cudaFree" in its.advice
    assert its.cost_ns == pytest.approx(STEPS * took_us * 1000, rel=0.05)


def test_a_few_gaps_below_a_millisecond_are_stalls_too() -> None:
    """Six of 0.9 ms: too few to be the gaps of slow launches."""
    (its,) = diagnose(frees(900), select=["launch-gap"], thresholds=LEAST).findings
    assert "stalls 6 times for over 0.1 ms" in its.summary
    assert its.cost_ns == pytest.approx(STEPS * 900_000, rel=0.05)


LEAST = {"launch-gap": {"min_step_share": 0.03}}


def test_what_a_call_takes_beyond_what_it_waits_for_is_its_ranks_own() -> None:
    """Rank 1 frees memory in each step, which waits for its GPU and takes 3 ms more."""
    run = Tiny(2)
    for step in range(12):
        begin = 9_000 * step
        for rank in (0, 1):
            run.step(rank, step, begin, 9_000)
            run.kernel(rank, begin + 10, 2_000)
            came = begin + 2_100 + 3_000 * rank
            run.blocking_call(
                rank, "cudaFree" if rank else "cudaStreamSynchronize", begin + 20, came - begin - 25
            )
            run.collective(rank, "all_reduce", came, begin + 8_900 - came, size=1 << 26)
            run.blocking_call(rank, "cudaDeviceSynchronize", came + 10, begin + 8_895 - came)
    (its,) = diagnose(run.trace(), select=["straggler"]).findings
    assert its.ranks == (1,)
    assert its.cost_ns == pytest.approx(12 * 3_000_000, rel=0.05)


def test_what_a_host_does_once_its_gpu_is_done_is_to_be_done_before() -> None:
    """It reads a token, prepares for 0.6 ms, launches a graph; the copies beside that are two."""
    run = Tiny(2)
    for step in range(STEPS):
        for rank in range(2):
            at = 2_700 * step
            run.step(rank, step, at, 2_700)
            run.step(rank, step, at + 200, 250, label="prepare_inputs")
            launched = BASE_NS + round(1000 * (at + 600))
            run.copy(rank, at + 605, 2, kind="HtoD", size=64, launch_ns=launched)
            run.kernel(rank, at + 615, 1_000, launch_ns=launched + 5_000)
            run.collective(
                rank, "all_reduce", at + 1_616, 1_000, size=8192, launch_ns=launched + 8_000
            )
            run.copy(rank, at + 2_620, 2, kind="DtoH", size=4, launch_ns=launched + 12_000)
            run.blocking_call(rank, "cudaStreamSynchronize", at + 615, 2_020)
    (its,) = diagnose(run.trace(), select=["launch-gap"]).findings
    assert "stalls 5 times for over 0.1 ms" in its.summary
    assert "partly in 'prepare_inputs'" in its.summary
    assert (
        "waits for the GPU in cudaStreamSynchronize: leave that out, or launch what comes next"
        in its.advice
    )
    assert "loading data, printing" not in its.advice  # which nothing tells
    assert its.cost_ns == pytest.approx((STEPS - 1) * 650_000, rel=0.1)


def test_what_devices_lack_in_turn_adds_up() -> None:
    """Each is idle for 4 % of the time, for want of launches: all wait for the one or the other."""
    run = Tiny(2)
    for step in range(2 * STEPS):
        for rank in range(2):
            at, every = 5_300 * step, 100 if rank == step % 2 else 92
            run.step(rank, step, at, 5_300)
            for i in range(50):
                began = at + 10 + every * i
                run.kernel(rank, began, 92, launch_ns=BASE_NS + round(1e3 * (began - 5)))
            begin, launched = at + 10 + every * 50, at + every * 50
            run.collective(
                rank,
                "all_reduce",
                begin,
                at + 5_285 - begin,
                size=8192,
                launch_ns=BASE_NS + round(1e3 * launched),
            )
            run.blocking_call(rank, "cudaStreamSynchronize", launched + 5, at + 5_287 - launched)
    (its,) = diagnose(run.trace(), select=["launch-gap"]).findings
    assert its.ranks == (0, 1)
    assert its.cost_ns == pytest.approx(2 * STEPS * 400_000, rel=0.1)


def test_hosts_that_launch_slowly_together_are_mended_together() -> None:
    """Of ten kernels the one or the other host launches each later, in turn; then all wait."""
    run, at = Tiny(2), 0.0
    for step in range(40):
        run_ns = BASE_NS + round(1e3 * at)
        for rank in range(2):
            every = 20 if rank == step % 2 else 16
            run.step(rank, step, at, 240)
            for nth in range(10):
                launch_us = at + every * (nth + 1)
                run.kernel(rank, launch_us + 5, 10, launch_ns=BASE_NS + round(1e3 * launch_us))
            begin = 10 * every + 20
            launched = run_ns + 1000 * (begin - 5)
            run.collective(
                rank, "all_reduce", at + begin, 235 - begin, size=8192, launch_ns=launched
            )
        at += 240
    (its,) = diagnose(run.trace(), select=["launch-gap"]).findings
    assert its.cost_ns == pytest.approx(40 * 110_000, rel=0.15)


def test_what_is_copied_there_and_back_for_a_stall_is_saved_with_it() -> None:
    """An optimizer on the CPU: 4 ms of gradients to it, 9 ms of its own, 2 ms of weights back."""
    run = Tiny(2)
    for step in range(STEPS):
        for rank in range(2):
            at = 26_000 * step
            run.step(rank, step, at, 26_000)
            first, again = (BASE_NS + round(1000 * (at + us)) for us in (10, 23_125))
            run.kernel(rank, at + 20, 8_000, launch_ns=first)
            run.collective(rank, "all_reduce", at + 8_021, 2_000, size=1 << 26, launch_ns=first + 9)
            begin = at + 10_022
            run.copy(rank, begin, 4_000, kind="DtoH", size=200_000_000, launch_ns=first + 18)
            run.blocking_call(rank, "cudaStreamSynchronize", at + 15, begin + 4_005 - at - 15)
            back = {"kind": "HtoD", "source": "host", "destination": "cuda:0", "launch_ns": again}
            run.copy(rank, at + 23_130, 2_000, size=100_000_000, **back)
            run.kernel(rank, at + 25_131, 800, launch_ns=again + 9)
            run.blocking_call(rank, "cudaDeviceSynchronize", at + 23_140, 2_800)
    (its,) = diagnose(run.trace(), select=["launch-gap"]).findings
    assert its.cost_ns == pytest.approx(STEPS * 15_100_000, rel=0.05)
    assert "sends 1.8 GB there and back for it, which takes another 36 ms" in its.advice


def event(category: str, name: str, at: float, long: float, tid: int, **args: int) -> Any:
    times = {"ts": at, "dur": long, "pid": 1, "tid": tid}
    return {"ph": "X", "cat": category, "name": name, **times, "args": args}


@pytest.mark.parametrize(
    ("names", "todo"),
    [
        (("aten::relu_", "aten::zero_"), "aten::zero_ for 1.8 ms: zero_grad(set_to_none=True)"),
        (("CompiledFunction", "aten::relu_"), "capture CUDA graphs (torch.compile's mode=\"reduce"),
        (("Torch-Compiled Region: 0/0",), "capture CUDA graphs (torch.compile's mode=\"reduce"),
        (("aten::_foreach_norm",), "runs aten::_foreach_norm for 3.6 ms; unrecorded"),
        (("aten::_foreach_addcdiv_",), "for 3.6 ms: a fused optimizer (fused=True)"),
        (("aten::relu_",), "in the gaps the host runs aten::relu_ for 3.6 ms; unrecorded"),
    ],
)
def test_gaps_are_told_by_the_operators_that_launch_into_them(
    tmp_path: Path, names: tuple[str, ...], todo: str
) -> None:
    """120 kernels of 5 us, launched at the end of operators of 30 us."""
    events = []
    for turn in range(121):
        at = 35.0 * turn
        events += [
            event("cpu_op", names[turn % len(names)], at, 30, 1),
            event("cuda_runtime", "cudaLaunchKernel", at + 25, 3, 1, correlation=turn + 1),
            event("kernel", "gemm", at + 30, 5, 7, device=0, stream=7, correlation=turn + 1),
        ]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    run = load(tmp_path, cache=False, workers=1).measures
    (its,) = diagnose(run, select=["launch-gap"]).findings
    assert todo in its.advice


def test_where_in_the_program_a_stalled_host_is() -> None:
    """Its GPU has nothing to run for 5 ms a step, while looks see it at a line of its loader."""
    run = Tiny(2)
    for step in range(STEPS):
        for rank in range(2):
            at = 16_000 * step
            run.step(rank, step, at, 16_000)
            for look in (500, 1500, 2500, 3500):
                run.look(rank, at + look, "data.py:88 in decode", 1000)
            run.look(rank, at + 9_000, "train.py:20 in main", 1000)
            launched = BASE_NS + round(1000 * (at + 5_000))
            run.kernel(rank, at + 5_010, 9_000, launch_ns=launched)
            run.collective(rank, "all_reduce", at + 14_020, 1900, size=1 << 20, launch_ns=launched)
    (its,) = diagnose(run.trace(), select=["launch-gap"]).findings
    assert its.advice.startswith("at data.py:88 in decode: look at what the host does meanwhile")


def test_memory_that_is_not_freed_waits_for_nothing() -> None:
    """Each step's all_reduce of 3 ms could run beside the 2 ms that are launched behind cudaFree.

    That waits for it, and takes 0.4 ms more, so that its wait is over before the call is.
    """
    run = Tiny(2)
    for step in range(12):
        for rank in range(2):
            at = 6_600 * step
            run.step(rank, step, at, 6_600)
            run.kernel(rank, at + 30, 1_000, launch_ns=BASE_NS + 1000 * (at + 10))
            launched = BASE_NS + 1000 * (at + 20)
            run.collective(rank, "all_reduce", at + 1_035, 3_000, size=1 << 20, launch_ns=launched)
            for start, took, name in (
                (25, 4_420, "Free"),
                (4_446, 3, "Free"),
                (4_450, 10, "Malloc"),
            ):
                run.blocking_call(rank, f"cuda{name}", at + start, took)
            run.kernel(rank, at + 4_480, 2_000, launch_ns=BASE_NS + 1000 * (at + 4_470))
            run.blocking_call(rank, "cudaStreamSynchronize", at + 4_475, 2_015)
    (its,) = diagnose(run.trace(), select=["host-sync"]).findings
    assert its.cost_ns == pytest.approx(12 * 2.44e6, rel=0.05)


def test_a_stall_in_ddps_search_for_unused_parameters_names_the_option(tmp_path: Path) -> None:
    """Six kernels of 3 ms, before each of which the host searches for 5 ms."""
    events = []
    for turn in range(6):
        at = 9_000.0 * turn
        name = "torch.distributed.ddp.reducer::search_unused_parameters"
        events += [
            event("cpu_op", name, at, 5_000, 1),
            event("cuda_runtime", "cudaLaunchKernel", at + 5_100, 3, 1, correlation=turn + 1),
            event("kernel", "gemm", at + 5_110, 3_000, 7, device=0, stream=7, correlation=turn + 1),
        ]
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": events}))
    run = load(tmp_path, cache=False, workers=1).measures
    (its,) = diagnose(run, select=["launch-gap"]).findings
    assert ": leave out find_unused_parameters=True if all are used" in its.advice


@pytest.mark.parametrize(
    ("label", "told"), [("_compile.compile_inner (dynamo_timed)", True), ("forward", False)]
)
def test_a_host_that_compiles_while_it_launches_nothing_says_so(label: str, told: bool) -> None:
    run = Tiny()
    run.step(0, 1, 0, 10_000)
    run.step(0, 1, 100, 9_000, label=label)
    when = union([BASE_NS + 200_000], [BASE_NS + 8_000_000])
    said = known_work(run.trace(), 0, when) or ""
    assert said.startswith("torch.compile compiles anew") == told
