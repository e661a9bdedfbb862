"""Objects that are sent in every step: pickled by one, unpickled by the others."""

from __future__ import annotations

from typing import Any

import pytest

from commtrace.diagnosis import Finding
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

PACKING_US, MOVING_US, UNPACKING_US, STEP_US = 5000, 1000, 8000, 51_000


def with_objects(
    sizes: tuple[int, ...] = (800_000,) * 6,
    header: str = "int64",
    every: int = 1,
    making_us: float = 0,
    unpickling_us: float = UNPACKING_US,
    roots: tuple[int, ...] = (0,),
    barrier: bool = False,
    count: int = 1,
) -> Measures:
    """In each step rank 0 sends objects that long; then both compute and average 1 MB.

    It makes them for so long before, behind which there may be a ``barrier``.
    """
    run = Tiny(2, backend="gloo")
    call: dict[str, Any] = {"thread": 1, "stream": 50, "asynchronous": 0}
    for step, size in enumerate(sizes):
        root = roots[step % len(roots)]
        for rank in range(2):
            start = STEP_US * step
            run.step(rank, step, start, STEP_US)
            run.op(rank, start, 1000)
            now = start + 1010.0
            told: dict[str, Any] = {"root": root, "step": step, **call}
            if barrier:
                called = now + making_us * (rank == root)
                run.collective(rank, "barrier", called, now + making_us + 100 - called, **call)
                run.gap(rank, now, making_us + 100)
                now += making_us + 110
            for _ in range(count if step % every == 0 else 0):
                packed = now + making_us * (not barrier) + PACKING_US
                asked = packed if rank == root else now
                sent = {**told, "size": 8, "dtype": header}
                run.collective(rank, "broadcast", asked, packed + 100 - asked, **sent)
                run.gap(rank, now, packed + 100 - now)
                at = packed + 110
                run.collective(rank, "broadcast", at, MOVING_US, size=size, dtype="uint8", **told)
                now = at + MOVING_US + 10
                unpacked = now + unpickling_us
                if rank != root:
                    run.gap(rank, now, unpickling_us)
                now = unpacked if rank != root else now
            run.op(rank, now, 4000)
            done = start + STEP_US - 1000
            run.collective(
                *(rank, "all_reduce", now + 4010, done - now - 4010),
                size=1 << 20,
                step=step,
                **call,
            )
            run.gap(rank, now + 4010, done - now - 4010)
    return run.trace()


def found(run: Measures) -> tuple[Finding, ...]:
    return diagnose(run, select=["redundant"]).findings


def test_what_packs_and_unpacks_them_is_saved_too() -> None:
    (finding,) = found(with_objects())
    assert finding.summary.startswith("one rank sends Python objects in every step")
    python_us, calls_us = PACKING_US + UNPACKING_US, 100 + MOVING_US
    assert python_us <= finding.cost_ns / 6e3 <= python_us + calls_us
    assert finding.confidence == "medium"


def test_a_window_may_cut_one_of_its_steps() -> None:
    assert found(with_objects(sizes=(600_000, *[800_000] * 5)))


@pytest.mark.parametrize(
    "run",
    [
        with_objects(sizes=(800_000, 700_000, 800_000, 810_000, 600_000, 800_000)),  # others
        with_objects(sizes=(200,) * 6),  # a few numbers, each time as long
        with_objects(header="float32"),  # bytes of the program's own
        with_objects(every=3),  # too few to say
        with_objects(making_us=15_000),  # what the sender reads and tokenises meanwhile
        with_objects(making_us=15_000, barrier=True),
        with_objects(unpickling_us=20),  # a shape, and pictures
        with_objects(roots=(0, 1)),  # each sends its own
        with_objects(sizes=(800_000,) * 9, every=3),
    ],
)
def test_what_may_be_news_is_not_told_to_be_known(run: Measures) -> None:
    assert not found(run)


def gathering(
    data: str = "uint8",
    idle_us: float = 3000,
    every: int = 1,
    lengths: int = 1,
    computing_us: float = 5000,
    steps: bool = True,
    telling_us: float = 200,
) -> Measures:
    """In each of 12 rounds both ranks gather 100 kB, idle before and behind, and compute twice.

    The lengths are gathered for so long.
    """
    run, length = Tiny(2, backend="gloo"), 1_300 + telling_us + 2 * computing_us + 2 * idle_us
    for step in range(12):
        for rank in range(2):
            start = length * step
            call: dict[str, Any] = {"thread": 1, "stream": 50, "asynchronous": 0}
            if steps:
                call["step"] = step
                run.step(rank, step, start, length)
            run.op(rank, start, computing_us)
            now = start + computing_us + idle_us
            if step % every == 0:
                run.gap(rank, start + computing_us, idle_us)
                told, sent = (16 * lengths, "int64", telling_us), (100_000, data, 200)
                for size, dtype, us in (told, sent):
                    run.collective(rank, "all_gather", now, us, size=size, dtype=dtype, **call)
                    run.gap(rank, now, us)
                    now += us + 20
                run.gap(rank, now, idle_us)
                now += idle_us
            run.op(rank, now, computing_us)
            run.collective(rank, "all_reduce", now + computing_us + 10, 1000, size=1 << 20, **call)
            run.gap(rank, now + computing_us + 10, 1000)
    return run.trace()


@pytest.mark.parametrize(
    ("idle_us", "computing_us", "saved_us"),
    [
        (3000, 5000, 6000),
        (30_000, 40_000, 37_500),  # at 4 MB/s: 50 kB before, 100 kB behind
        (30_000, 5000, 7_500),  # at 20 MB/s: they do other things in Python, too
    ],
)
def test_what_pickles_objects_that_all_exchange_is_saved_as_far_as_bytes_take_it(
    idle_us: float, computing_us: float, saved_us: float
) -> None:
    (finding,) = found(gathering(idle_us=idle_us, computing_us=computing_us))
    assert finding.summary.startswith("ranks exchange Python objects in every step")
    assert "too many" not in finding.summary
    assert finding.confidence == "low"
    assert finding.cost_ns == pytest.approx(12e3 * saved_us, rel=0.1)


def test_tensors_need_no_lengths_told() -> None:
    (finding,) = found(gathering(telling_us=4000))
    assert finding.cost_ns == pytest.approx(12e3 * (6000 + 4000), rel=0.03)
    assert "the saving is the telling of their lengths" in finding.advice


def test_in_a_run_without_steps_they_are_exchanged_again_and_again() -> None:
    (finding,) = found(gathering(steps=False))
    assert finding.summary.startswith("ranks exchange Python objects again and again")
    assert finding.cost_ns == pytest.approx(12e3 * 6000, rel=0.1)
    assert not found(gathering(steps=False, every=2))


def test_two_in_a_step_are_packed_and_unpacked_both() -> None:
    (finding,) = found(with_objects(count=2))
    python_us, calls_us = PACKING_US + UNPACKING_US, 100 + MOVING_US + 20
    assert 1.5 * python_us <= finding.cost_ns / 6e3 <= 2 * (python_us + calls_us)


@pytest.mark.parametrize(
    "run",
    [gathering(data="float32"), gathering(every=3), gathering(lengths=64)],  # texts, padded
)
def test_tensors_and_objects_now_and_then_are_as_they_should_be(run: Measures) -> None:
    assert not found(run)


def scattering(content: str = "uint8", rounds: int = 12) -> Measures:
    """Rank 0 packs 400 kB for 20 ms, two parts, of which each rank unpacks its own for 10 ms."""
    run, now = Tiny(2, backend="gloo"), 0.0
    parts = ("broadcast", 8, "int64"), ("scatter", 400_000, content), ("scatter", 16, "int64")
    call = {"thread": 1, "stream": 50, "asynchronous": 0, "root": 0}
    for _ in range(rounds):
        for rank in range(2):
            run.op(rank, now, 5_000)
            run.gap(rank, now + 5_000, 20_000 + 700 + 10_000)
            early = 20_000 * rank
            for number, (op, size, dtype) in enumerate(parts):
                at, lasts = now + 25_000 + 220 * number, 200.0
                if not number:
                    at, lasts = at - early, lasts + early
                run.collective(rank, op, at, lasts, size=size, dtype=dtype, **call)
            run.op(rank, now + 35_700, 5_000)
            run.collective(rank, "gather", now + 40_710, 200, size=1 << 20, **call)
            run.gap(rank, now + 40_710, 200)
        now += 41_000
    return run.trace()


def test_objects_that_one_rank_scatters() -> None:
    """400 kB packed and 200 kB unpacked at 20 MB/s: 20 and 10 ms."""
    (finding,) = found(scattering())
    assert "ranks exchange Python objects again and again" in finding.summary
    assert finding.advice.startswith("scatter tensors")
    assert finding.cost_ns == pytest.approx(12 * 30e6, rel=0.15)
    assert not found(scattering(content="float32"))
    assert not found(scattering(rounds=6)), "too few to say"


@pytest.mark.parametrize("every", [1, 2])
def test_a_models_state_is_sent_pickled_whatever_its_sender_does_before(every: int) -> None:
    """Of so many bytes pickling takes 10 ms, unpickling more than the 8 that there are."""
    sizes = tuple(3_500_000 + 1_000 * step for step in range(8))
    (finding,) = found(with_objects(sizes=sizes, making_us=20_000, every=every))
    assert finding.summary.startswith("one rank broadcasts large Python objects")
    assert "as one flat one" in finding.advice
    times = 8 // every
    assert finding.cost_ns / 1e6 == pytest.approx(times * (10 + UNPACKING_US / 1e3), rel=0.15)


def test_small_objects_and_such_as_are_sent_twice_are_no_state() -> None:
    assert not found(with_objects(sizes=(900_000, 910_000) * 3, making_us=20_000))
    assert not found(
        with_objects(sizes=tuple(range(4_000_000, 4_000_006)), every=3, making_us=20_000)
    )


def test_tensors_that_one_rank_sends_one_by_one_as_objects() -> None:
    """Four a step, packed for 500 us each and unpacked for 400: no state of 1 MB, not alike."""
    sizes = tuple(20_000 + 100 * step for step in range(6))
    few_us = {"making_us": 0, "unpickling_us": 400}
    (finding,) = found(with_objects(sizes=sizes, count=4, **few_us))
    assert "ranks exchange Python objects in every step" in finding.summary
    assert finding.advice.startswith("broadcast tensors")
    assert not found(with_objects(sizes=sizes, count=3, **few_us))


def messages(content: str = "uint8", rounds: int = 12, lengths: int = 8) -> Measures:
    """Rank 0 packs 400 kB for 20 ms and sends it to rank 1, which unpacks it for 15 ms."""
    run, now = Tiny(2, backend="gloo"), 0.0
    call = {"thread": 1, "stream": 50, "asynchronous": 0}
    for _ in range(rounds):
        for rank, op, packs_us, unpacks_us in ((0, "send", 20_000, 0), (1, "recv", 0, 15_000)):
            run.op(rank, now, 5_000)
            run.gap(rank, now + 5_000, 20_000 + 700 + unpacks_us)
            waits_us = 20_000 - packs_us
            for number, (size, dtype) in enumerate(((lengths, "int64"), (400_000, content))):
                at, lasts = now + 25_000 + 220 * number, 200.0
                if not number:
                    at, lasts = at - waits_us, lasts + waits_us
                told = {"size": size, "dtype": dtype, "peer": 1 - rank}
                run.collective(rank, op, at, lasts, **told, **call)
            run.op(rank, now + 25_700 + unpacks_us, 5_000)
            end = now + 45_710
            called = now + 30_710 + unpacks_us
            told = {"size": 1 << 20, **call}
            run.collective(rank, "all_reduce", called, end + 200 - called, **told)
            run.gap(rank, called, end + 200 - called)
        now += 46_000
    return run.trace()


def test_objects_that_one_sends_another() -> None:
    """400 kB at 20 MB/s are packed for 20 ms; unpacking takes no longer than the 15 there are."""
    (finding,) = found(messages())
    assert "ranks exchange Python objects again and again" in finding.summary
    assert finding.advice.startswith("send tensors")
    assert finding.cost_ns == pytest.approx(12 * 35e6, rel=0.05)
    assert not found(messages(content="float32"))
    assert not found(messages(lengths=2_048)), "labels, and images"
    assert found(messages(rounds=10))
    assert not found(messages(rounds=9)), "too few to say"
