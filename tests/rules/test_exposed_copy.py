"""Copies that nothing computes beside: what compute could hide, and of which ranks."""

from __future__ import annotations

from itertools import product

import pytest

from benchmarks.faults.loop import Loop
from commtrace.diagnosis import LOOKED, Finding
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny


def found(run: Tiny) -> tuple[Finding, ...]:
    return diagnose(run.trace(), select=["exposed-copy"]).findings


def layers(count: int, copy_us: float, compute_us: float, *, copying: tuple[int, ...]) -> Tiny:
    """Two ranks; before each layer some copy from pinned memory, and the others wait as long."""
    run = Tiny(2)
    for step in range(2):
        for rank in (0, 1):
            at = step * 20_000.0
            run.step(rank, step, at, 20_000)
            for _ in range(count):
                if rank in copying:
                    way = {"source": "host", "destination": "cuda:0", "memory": "pinned"}
                    run.copy(rank, at, copy_us, kind="HtoD", size=4_000_000, stream=9, **way)
                run.kernel(rank, at + copy_us, compute_us)
                at += copy_us + compute_us
            run.collective(rank, "all_reduce", at, 100, size=1_000)
    return run


@pytest.mark.parametrize(("compute_us", "saved_us"), [(600, 10 * 400), (150, 10 * 150)])
def test_compute_hides_no_more_than_it_takes(compute_us: float, saved_us: float) -> None:
    (finding,) = found(layers(10, 400, compute_us, copying=(0, 1)))
    assert finding.cost_ns == pytest.approx(2e3 * saved_us, rel=0.02)
    assert finding.confidence == "medium"
    assert "next layer's tensors" in finding.advice


def replayable(copy_us: float) -> Loop:
    """Six steps of ten layers of 600 µs, each behind a copy; hosts wait at the end of each step."""
    loop = Loop(3, ranks=2, steps=6, host_leads=False)
    loop.spread = 0.0
    pinned = {"kind": "HtoD", "source": "host", "destination": "cuda:0", "memory": "pinned"}
    for _ in range(loop.steps):
        with loop.step():
            for _, rank in product(range(10), loop.everyone):
                if copy_us:
                    loop.copy(rank, copy_us, size=4_000_000, **pinned)
                loop.compute(rank, 600)
            loop.together("all_reduce", 1_000_000, wait=True)
    return loop


def test_a_replay_hides_the_copies_behind_compute() -> None:
    behind_another, hidden = replayable(copy_us=400), replayable(copy_us=0)
    (finding,) = found(behind_another.run)
    assert finding.cost_ns == pytest.approx(6 * 10 * 400_000, rel=0.01)
    assert finding.replayed_step_ns == pytest.approx(1e3 * hidden.elapsed_us() / 6, rel=0.01)


def test_copies_of_one_rank_alone_are_not_what_all_wait_for() -> None:
    assert not found(layers(10, 400, 600, copying=(1,)))


def test_a_batch_at_the_start_of_each_step_may_not_be_there_earlier() -> None:
    run = layers(1, 4_000, 6_000, copying=(0, 1))
    assert not found(run)
    said = diagnose(run.trace(), select=["exposed-copy"]).skipped["exposed-copy"]
    assert said.startswith(f"{LOOKED}8 ms of copies from pinned memory run with nothing computed")


def tensors(kind: str, at_us: float, *, steps: bool) -> Tiny:
    """Six iterations; 5 pinned tensors one behind the other, each cast, at one place of each."""
    run = Tiny(1)
    for step in range(6):
        start = step * 10_000.0
        if steps:
            run.step(0, step, start, 10_000)
        run.kernel(0, start + 3_100, 3_500)
        for at in range(5):
            way = {"memory": "pinned"}
            if kind == "HtoD":
                way |= {"source": "host", "destination": "cuda:0"}
            its = start + at_us + at * 620
            run.copy(0, its, 600, kind=kind, size=8_000_000, stream=9, **way)
            run.kernel(0, its + 600, 15, stream=9)
    return run


@pytest.mark.parametrize(("kind", "at_us"), [("HtoD", 0), ("DtoH", 6_700)])
def test_the_tensors_of_a_batch_and_results_are_no_layers(kind: str, at_us: float) -> None:
    assert not found(tensors(kind, at_us, steps=True))


def test_without_steps_nothing_tells_layers_from_batches() -> None:
    run = tensors("HtoD", 0, steps=False).trace()
    assert "steps" in diagnose(run, select=["exposed-copy"]).skipped["exposed-copy"]


def test_what_goes_to_the_host_is_copied_while_the_next_layer_computes() -> None:
    run = Tiny(1)
    for step in range(2):
        run.step(0, step, step * 8_000, 8_000)
        for layer in range(10):
            at = step * 8_000 + layer * 700
            run.kernel(0, at, 400)
            run.copy(0, at + 400, 300, kind="DtoH", size=4_000_000, stream=9, memory="pinned")
    (finding,) = found(run)
    assert finding.advice.startswith("copy what a layer leaves while the next one computes")


@pytest.mark.parametrize(("launched_us", "told"), [(4_500, True), (3_900, False)])
def test_a_batch_whose_copy_waits_for_its_stream_was_there_earlier(
    launched_us: float, told: bool
) -> None:
    """Of 10 ms 4 go into its copy, which the host had called for so long before."""
    run = Tiny(1)
    for step in range(6):
        start = 10_000.0 * step
        run.step(0, step, start, 10_000)
        way = {"source": "host", "destination": "cuda:0", "memory": "pinned"}
        its = {"launch_ns": BASE_NS + round(1e3 * (start - launched_us))}
        run.copy(0, start, 4_000, kind="HtoD", size=100_000_000, **way, **its)
        run.kernel(0, start + 4_000, 6_000)
    if not told:
        assert not found(run)
        return
    (finding,) = found(run)
    assert finding.confidence == "medium"
    assert finding.cost_ns == 5 * 4_000_000  # nothing is before the first
    assert finding.advice.startswith("copy the next batch while this one computes")
