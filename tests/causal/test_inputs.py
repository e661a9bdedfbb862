"""Whether late ranks compute on larger inputs than the others, or longer on the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commtrace.causal.blame.culprits import culprits
from commtrace.causal.work.inputs import Inputs, inputs, others_in_turn, uneven_inputs
from commtrace.diagnosis import Finding
from commtrace.rules import diagnose
from commtrace.run import Run, load
from commtrace.synthetic import BASE_NS

HOST, OTHER, STREAM = 1, 2, 7
STEPS, REDUCES_US = 8, 1_000.0
Work = Callable[[int, float], tuple[list[dict[str, Any]], float]]


def event(
    category: str, name: str, at: float, long: float, *, tid: int = HOST, **args: Any
) -> dict[str, Any]:
    times = {"ts": at, "dur": long}
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, **times, "args": args}


def linear(at: float, long: float, rows: int, kind: str = "float") -> list[dict[str, Any]]:
    """``linear`` calls ``addmm``, which takes nearly all of it; the weights are large."""
    dims, types = [[512], [rows, 512], [512, 512]], ["float", kind, "float"]
    of_addmm = {"Input Dims": dims, "Input type": types}
    of_linear = {"Input Dims": dims[1:], "Input type": types[1:]}
    return [
        event("cpu_op", "aten::linear", at, long, **of_linear),
        event("cpu_op", "aten::addmm", at + 5, long - 10, **of_addmm),
    ]


def on_cpu(rank: int, called: float, end: float) -> Iterator[dict[str, Any]]:
    shaped = {"Input Dims": [[[250]]], "Input type": ["TensorList"]}
    yield event("cpu_op", "c10d::allreduce_", called, 20, **shaped)
    sizes = {"Input Dims": [[250]], "Input type": ["float"]}
    yield event("user_annotation", "gloo:all_reduce", called + 10, end - called, tid=OTHER, **sizes)


def on_gpu(rank: int, called: float, end: float) -> Iterator[dict[str, Any]]:
    its = {"device": rank, "stream": 20, "correlation": round(called)}
    said = {"Collective name": "allreduce", "In msg nelems": 250, "Out msg nelems": 250}
    said |= {"Group size": 2, "dtype": "Float", "Process Group Name": "0"}
    yield event("cuda_runtime", "cudaLaunchKernel", called, 5, correlation=round(called))
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
    yield {**event("kernel", name, called + 10, end - called, tid=20, **its, **said), "pid": rank}


def written(
    folder: Path,
    work: Work,
    reduces: Any,
    steps: int = STEPS,
    hosts: str = "aa",
    label: str = "ProfilerStep#",
) -> Run:
    """Two ranks that work, each as it does, and then reduce together."""
    events: list[list[dict[str, Any]]] = [[], []]
    at = 0.0
    for number in range(steps):
        done = [work(rank, at + 10) for rank in (0, 1)]
        end = max(until for _, until in done) + REDUCES_US
        for rank, (its, until) in enumerate(done):
            step = event("user_annotation", f"{label}{number}", at, end + 50 - at)
            events[rank] += [step, *its, *reduces(rank, until, end)]
        at = end + 60
    groups = [{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}]
    for rank, its in enumerate(events):
        backend = "gloo" if reduces is on_cpu else "nccl"
        info = {"rank": rank, "world_size": 2, "backend": backend, "pg_config": groups}
        about = {"distributedInfo": info, "baseTimeNanoseconds": 10**9, "host_name": hosts[rank]}
        trace = {**about, "traceEvents": its}
        (folder / f"rank{rank}.json").write_text(json.dumps(trace))
    return load(folder, cache=False)


def computing(long: Sequence[float], rows: Sequence[int], kinds: Sequence[str]) -> Work:
    def work(rank: int, at: float) -> tuple[list[dict[str, Any]], float]:
        return linear(at, long[rank], rows[rank], kinds[rank]), at + long[rank] + 5

    return work


def launching(long: Sequence[float], rows: Sequence[int]) -> Work:
    def work(rank: int, at: float) -> tuple[list[dict[str, Any]], float]:
        correlation = round(at) + 100_000_000
        kernel = {"device": rank, "stream": STREAM, "correlation": correlation}
        launched = event("cuda_runtime", "cudaLaunchKernel", at + 10, 5, correlation=correlation)
        its = event("kernel", "gemm", at + 40, long[rank], tid=STREAM, **kernel)
        return [*linear(at, 30, rows[rank]), launched, {**its, "pid": rank}], at + long[rank] + 45

    return work


def late(run: Run) -> tuple[Inputs, Finding]:
    (culprit,) = culprits(run.measures, 0.05).found
    assert culprit.ranks == (1,)
    its = inputs(run.measures, culprit.ranks, culprit.call)
    assert its is not None
    (finding,) = diagnose(run.measures, select=["straggler"]).findings
    return its, finding


def test_larger_inputs_are_named_beside_the_others(tmp_path: Path) -> None:
    """A half more rows, and a half more time; the weights, of which there is more, are no more."""
    work = computing((10_000, 15_000), (64, 96), ("float", "float"))
    its, finding = late(written(tmp_path, work, on_cpu))
    assert (its.names, its.example) == (("aten::addmm",), ("96×512 float", "64×512 float"))
    assert its.larger_ns == pytest.approx(5e6)
    assert "(aten::addmm: 5 ms a step in the mean)" in finding.advice
    assert "96×512 float in place of 64×512 float: split the work evenly" in finding.advice
    assert finding.confidence == "high", finding.summary  # no fight for cores


def test_the_input_that_differs_is_named_beside_that_of_the_same_product(tmp_path: Path) -> None:
    """Each rank multiplies its rows with both weights; the others' second product takes longest."""

    def work(rank: int, at: float) -> tuple[list[dict[str, Any]], float]:
        rows, took = (64, 96)[rank], (10_000, 15_000)[rank]
        done = []
        for part, (left, right) in enumerate(([512, 256], [256, 512])):
            its = {"Input Dims": [[rows, left], [left, right]], "Input type": ["float"] * 2}
            long = took * (0.4 if rank == part else 0.6)
            done.append(event("cpu_op", "aten::mm", at, long - 5, **its))
            at += long
        return done, at

    its, _ = late(written(tmp_path, work, on_cpu))
    assert its.example == ("96×512 float", "64×512 float")


def test_a_larger_part_of_the_optimizer_is_none_of_the_data(tmp_path: Path) -> None:
    def work(rank: int, at: float) -> tuple[list[dict[str, Any]], float]:
        size, took = [768, (256, 1024)[rank]], (10_000, 15_000)[rank]
        its: dict[str, Any] = {"Input Dims": [size, size, size], "Input type": ["float"] * 3}
        return [event("cpu_op", "aten::addcdiv_", at, took - 5, **its)], at + took

    _, finding = late(written(tmp_path, work, on_cpu))
    assert "768×1024 float in place of 768×256 float: its part of the optimizer" in finding.advice


def test_another_type_is_to_be_converted(tmp_path: Path) -> None:
    work = computing((10_000, 19_000), (2048, 2048), ("float", "double"))
    its, finding = late(written(tmp_path, work, on_cpu))
    assert its.example == ("2048×512 double", "2048×512 float")
    assert "convert them to the type that the others work with" in finding.advice


def test_the_same_that_takes_longer_is_no_uneven_work(tmp_path: Path) -> None:
    work = computing((10_000, 15_000), (64, 64), ("float", "float"))
    its, finding = late(written(tmp_path, work, on_cpu))
    assert (its.names, its.same) == ((), True)
    assert its.time_ns / its.usual_ns == pytest.approx(1.5, abs=0.01)
    assert "the same operators on the same inputs take 1.50 times as long" in finding.advice
    assert "split" not in finding.advice


@pytest.mark.parametrize(
    ("steps", "took_us", "why"),
    [
        (4, 18_000, "1.80 times as long there, as it can in few steps"),
        (
            STEPS,
            15_000,
            "1.50 times as long there, as it can on a core that another process shares",
        ),
        (STEPS, 18_000, None),
    ],
)
def test_the_same_that_takes_longer_is_sure_where_no_core_explains_it(
    tmp_path: Path, steps: int, took_us: int, why: str | None
) -> None:
    """Half of a core, which another process shares, takes up to 1.7 times as long."""
    work = computing((10_000, took_us), (64, 64), ("float", "float"))
    _, finding = late(written(tmp_path, work, on_cpu, steps=steps))
    assert (why or "") in finding.summary
    assert (finding.confidence == "low") == (why is not None)


@pytest.mark.parametrize(
    ("slow", "long_us", "hosts", "doubt"),
    [
        ((3,), 120_000.0, "aa", "4.00 times as long there once"),
        ((3,), 120_000.0, "ab", ""),
        ((2, 5), 120_000.0, "aa", ""),
        ((2, 5), 48_000.0, "aa", "1.60 times as long there now and then"),
        ((3,), 50_000.0, "aa", None),  # a twelfth of the steps' time
    ],
)
def test_the_same_that_takes_longer_once_may_be_anothers_doing(
    tmp_path: Path, slow: tuple[int, ...], long_us: float, hosts: str, doubt: str | None
) -> None:
    """Whatever else ran on its host; on a host of its own, or much longer again, it is its own.

    Once, and little, it is told by none.
    """
    steps = iter([step for step in range(8) for _ in (0, 1)])

    def work(rank: int, at: float) -> tuple[list[dict[str, Any]], float]:
        long = long_us if next(steps) in slow and rank == 1 else 30_000.0
        return linear(at, long, 64), at + long + 5

    run = written(tmp_path, work, on_cpu, steps=8, hosts=hosts).measures
    ran_us = [
        [(long_us if rank and step in slow else 30_000.0) for step in range(8)] for rank in (0, 1)
    ]
    ranks = [
        {
            "rank": rank,
            "machine": {
                "steps": [[step, round(us), 0, round(us)] for step, us in enumerate(ran_us[rank])],
                "core_speed": [[BASE_NS + 10_000_000 * i, 40_000] for i in range(20)],
            },
        }
        for rank in (0, 1)
    ]
    run = replace(run, manifest={"ranks": ranks})
    findings = diagnose(run, select=["straggler"]).findings
    if doubt is None:
        assert not findings
        return
    (finding,) = findings
    assert finding.ranks == (1,)
    assert doubt in finding.summary
    assert (finding.confidence == "low") == bool(doubt)


def test_a_little_larger_does_not_explain_much_longer(tmp_path: Path) -> None:
    """1.05 times as large is 1.1 times as long at most: a fifth of it."""
    its, finding = late(
        written(tmp_path, computing((10_000, 15_000), (100, 105), ("float", "float")), on_cpu)
    )
    assert its.larger_ns == pytest.approx(10e6 * (1.05**2 - 1), rel=0.01)
    assert not its.is_more(5e6)
    assert not its.same
    assert "in place of" not in finding.advice


def test_kernels_are_those_of_the_operators_that_launched_them(tmp_path: Path) -> None:
    its, finding = late(written(tmp_path, launching((4_000, 6_000), (64, 96)), on_gpu))
    assert its.names == ("aten::addmm",)
    assert its.larger_ns == pytest.approx(2e6)
    assert "96×512 float in place of 64×512 float" in finding.advice


def test_without_files_or_shapes_nothing_is_said(tmp_path: Path) -> None:
    work = computing((10_000, 15_000), (64, 96), ("float", "float"))
    run = written(tmp_path, work, on_cpu)
    (tmp_path / "rank0.json").unlink()
    (finding,) = diagnose(run.measures, select=["straggler"]).findings
    assert inputs(run.measures, (1,), 0) is None
    assert (
        "split the work evenly (batch, sequence lengths, layers); if it is even" in finding.advice
    )


def test_ranks_in_turn_with_larger_inputs(tmp_path: Path) -> None:
    """Three steps of 10 ms, in which one or the other rank has a third more to do."""

    def work(rank: int, at: float) -> tuple[list[dict[str, Any]], float]:
        more = (at // 10_000) % 2 == rank
        long, rows = (9_000.0, 96) if more else (6_000.0, 64)
        return linear(at, long, rows), at + long + 5

    run = written(tmp_path, work, on_cpu, steps=3)
    its = uneven_inputs(run.measures)
    assert its is not None
    assert its.example == ("96×512 float", "64×512 float")
    (finding,) = diagnose(run.measures, select=["jitter"]).findings
    assert "who is late works on more (aten::addmm: 3 ms in one step)" in finding.advice


def test_a_rank_with_more_in_most_steps_is_no_straggler_if_another_has_it_in_the_rest(
    tmp_path: Path,
) -> None:
    """Rank 0 in five of eight: by chance."""

    def work(rank: int, at: float) -> tuple[list[dict[str, Any]], float]:
        more = (at // 10_000) % 8 in ((0, 1, 3, 4, 6) if rank == 0 else (2, 5, 7))
        long, rows = (9_000.0, 96) if more else (6_000.0, 64)
        return linear(at, long, rows), at + long + 5

    run = written(tmp_path, work, on_cpu)
    assert others_in_turn(run.measures, (0,))
    assert not culprits(run.measures, 0.05).found
    (finding,) = diagnose(run.measures, select=["jitter"]).findings
    assert "who is late works on more" in finding.advice


def test_what_only_one_rank_works_on_is_said(tmp_path: Path) -> None:
    """The same operators; on rank 1 one of them once more, on a whole catalogue."""

    def work(rank: int, at: float) -> tuple[list[dict[str, Any]], float]:
        its = linear(at, 6_000, 64)
        if rank == 0:
            return its, at + 6_005
        return [*its, *linear(at + 6_010, 5_000, 120_000)], at + 11_020

    its, finding = late(written(tmp_path, work, on_cpu))
    assert its.example == ("120000×512 float", "")
    assert finding.confidence == "high"


@pytest.mark.parametrize(("hosts", "named"), [("aa", False), ("ab", True)])
def test_who_takes_a_little_longer_for_the_same_beside_others_is_not_blamed(
    hosts: str, named: bool, tmp_path: Path
) -> None:
    """1.2 times as long as sharing a core's parts can cost it; of a host of its own it is slow."""
    work = computing((10_000, 12_000), (64, 64), ("float", "float"))
    its = diagnose(written(tmp_path, work, on_cpu, hosts=hosts).measures)
    assert [one.ranks for one in its.findings if one.rule == "straggler"] == [(1,)] * named
    assert not [one for one in its.findings if one.rule == "jitter"]
    if not named:
        assert "rank 1 takes 1.20 times as long as others" in its.skipped["straggler"]


@pytest.mark.parametrize("label", ["ProfilerStep#", "turn "])
def test_ranks_in_turn_that_do_the_same_are_doubted(label: str, tmp_path: Path) -> None:
    def work(rank: int, at: float) -> tuple[list[dict[str, Any]], float]:
        long = 9_000.0 if (at // 10_000) % 2 == rank else 6_000.0
        return linear(at, long, 64), at + long + 5

    run = written(tmp_path, work, on_cpu, label=label)
    (finding,) = diagnose(run.measures, select=["jitter"]).findings
    assert finding.confidence == "low"
    assert "all run the same operators on the same inputs" in finding.summary


def test_without_steps_it_is_what_operators_take_longer_in_all(tmp_path: Path) -> None:
    """Eight batches, 5 ms each, none of which is known to be a step."""
    work = computing((10_000, 15_000), (64, 96), ("float", "float"))
    _, finding = late(written(tmp_path, work, on_cpu, label="batch"))
    assert "(aten::addmm: 40 ms in all)" in finding.advice
    assert not [its.name for its in finding.evidence if " step" in its.name]


def test_a_dispatch_mode_of_one_rank_is_named(tmp_path: Path) -> None:
    """As under FlopCounterMode: the same operators on the same, each called anew by Python."""

    def work(rank: int, at: float) -> tuple[list[dict[str, Any]], float]:
        if rank == 0:
            return linear(at, 6_000, 64), at + 6_005
        shaped = {"Input Dims": [[64, 512]], "Input type": ["float"]}
        mode = [
            event("cpu_op", "aten::linear", at, 11_000, **shaped),
            event("cpu_op", "PythonDispatchMode", at + 5, 10_990, **shaped),
        ]
        return [*mode, *linear(at + 4_900, 6_000, 64)], at + 11_005

    its, finding = late(written(tmp_path, work, on_cpu))
    assert its.names[0] == "PythonDispatchMode"
    assert "longer a step in the mean, as a dispatch mode runs Python in each" in finding.advice


def test_absurd_sizes_and_types_cost_nothing_but_their_words(tmp_path: Path) -> None:
    """A file's shapes are hostile input: 2**61 rows to the power of thirty, a type with escapes."""

    def work(rank: int, at: float) -> tuple[list[dict[str, Any]], float]:
        long = 6_000.0 + 9_000.0 * rank
        shape = [2**61] * (30 if rank else 20)
        args = {"Input Dims": [shape], "Input type": ["float\x1b[2J" + 99 * "x"]}
        return [event("cpu_op", "aten::mul", at, long, **args)], at + long + 5

    its, finding = late(written(tmp_path, work, on_cpu))
    assert "\x1b" not in finding.advice
    assert all(len(text) <= 40 for text in its.example)


def test_who_waited_for_a_core_took_as_long_for_the_same(tmp_path: Path) -> None:
    """By the clock both compute for 15 ms; rank 1 waited for a core in 5 of them."""
    ranks = [
        {
            "rank": rank,
            "machine": {
                "steps": [[n, 15_000 - waited, waited, 15_000 - waited] for n in range(STEPS)]
            },
        }
        for rank, waited in enumerate((0, 5_000))
    ]
    (tmp_path / "manifest.json").write_text(json.dumps({"ranks": ranks}))
    work = computing((15_000, 15_000), (64, 64), ("float", "float"))
    run = written(tmp_path, work, on_cpu)
    (finding,) = diagnose(run.measures, select=["straggler"]).findings
    assert finding.ranks == (0,)
    assert "1.50 times as long" in finding.summary
    assert finding.confidence == "low"
