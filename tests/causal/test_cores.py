"""How busy the cores are that ranks share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from commtrace.causal.work.cores import foreign_load
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny


def ranks_on(**machine: float) -> Measures:
    rows = [{"rank": rank, "machine": machine} for rank in range(2)]
    return Tiny(2, backend="gloo", manifest={"ranks": rows}).trace()


MACHINE = {"cores": 2, "usable_cores": 1, "seconds": 1.0, "busy_s": 2.0, "own_s": 0.6}


@pytest.mark.parametrize("usable_cores", [1, 2])
def test_ranks_bound_to_a_core_each_share_the_machine(usable_cores: int) -> None:
    """Two ranks that took half a core each, and a neighbour that took the rest."""
    run = ranks_on(cores=2, usable_cores=usable_cores, seconds=1.0, busy_s=2.0, own_s=0.5)
    assert foreign_load(run) == pytest.approx(0.5)


def test_no_more_is_taken_than_there_is() -> None:
    """What others of a large machine took is not known by core."""
    assert foreign_load(ranks_on(cores=64, usable_cores=1, seconds=1, busy_s=60, own_s=1)) == 1


def test_each_host_has_its_own_load() -> None:
    """Others took half of the second host's cores; those of the first had time left."""
    shared = {"cores": 2, "usable_cores": 2, "seconds": 1.0, "own_s": 1.0}
    rows = [{"rank": rank, "machine": {**shared, "busy_s": rank + 1}} for rank in range(2)]
    run = Tiny(2, backend="gloo", hosts=("a", "b"), manifest={"ranks": rows}).trace()
    assert [foreign_load(run, [rank]) for rank in range(2)] == [0.0, 0.5]
    assert foreign_load(run) == 0.5


def test_what_others_took_is_evidence_beside_who_is_slow(training: Callable[..., Measures]) -> None:
    run = training(lambda rank, step: 4_000 + 8_000 * rank)
    rows = [{"rank": rank, "machine": MACHINE} for rank in range(2)]
    loaded = replace(run, manifest={"ranks": rows})
    (its,) = diagnose(loaded, select=["straggler"]).findings
    assert its.ranks == (1,)
    assert its.confidence == "low"
    taken = {one.name: one.value for one in its.evidence}
    assert taken["share of the CPU cores that other processes took"] == pytest.approx(40)


@pytest.mark.parametrize("sleeps", [False, True])
@pytest.mark.parametrize(
    ("steps", "times", "confidence"),
    [
        ((3, 4), 1.8, "low"),
        ((3, 4), 3.0, "high"),
        ((2, 5), 1.8, "low"),
        ((1, 4, 8), 1.8, "high"),
    ],
)
def test_where_nothing_tells_of_cores_others_may_take_one_for_a_while(
    steps: tuple[int, ...],
    times: float,
    confidence: str,
    sleeps: bool,
    training: Callable[..., Measures],
) -> None:
    """As two processes share a core; not ever again, nor more than half of it."""

    def more_us(rank: int, step: int) -> float:
        return 20_000 * (times - 1) if rank == 1 and step in steps else 0.0

    if sleeps:
        run = training(lambda rank, step: 20_000, sleep_us=more_us, steps=12)
    else:
        run = training(lambda rank, step: 20_000 + more_us(rank, step), steps=12)
    (its,) = diagnose(run, select=["straggler"]).findings
    assert its.summary.startswith("rank 1 stalls for")
    assert its.confidence == confidence


@pytest.mark.parametrize(
    ("own_s", "advice"),
    [(0.9, "outside of torch"), (0.4, "took no processor time"), (0.55, "look at data loading")],
)
def test_a_host_without_operators_computes_in_python_or_waits(
    own_s: float, advice: str, training: Callable[..., Measures]
) -> None:
    """Its process took more processor time than the other's, as much, or somewhat more."""
    run = training(lambda rank, step: 4_000, sleep_us=lambda rank, step: 5_000 * rank)
    rows = [
        {"rank": rank, "machine": {"own_s": own, "seconds": 1.0}}
        for rank, own in enumerate((0.4, own_s))
    ]
    (its,) = diagnose(replace(run, manifest={"ranks": rows}), select=["straggler"]).findings
    assert its.cause == "host"
    assert advice in its.advice


@pytest.mark.parametrize(("dtype", "advice"), [("uint8", "pickles"), ("float32", "outside of")])
def test_a_root_that_computes_before_it_sends_objects_pickles_them(dtype: str, advice: str) -> None:
    """Their lengths, and then their bytes; other broadcasts of the step carry tensors."""
    rows = [{"rank": rank, "machine": {"own_s": 0.9 - 0.5 * rank, "seconds": 1}} for rank in (0, 1)]
    run = Tiny(2, backend="gloo", manifest={"ranks": rows})
    for step in range(8):
        at = 10_000 * step
        for rank in range(2):
            call = at + 6_000 - 5_000 * rank
            run.step(rank, step, at, 10_000)
            run.op(rank, at, 1_000)
            run.gap(rank, at + 1_000, 5_500)
            root = {"root": 0, "thread": 1, "step": step, "asynchronous": 0}
            run.collective(
                rank, "broadcast", call, at + 6_200 - call, size=8, dtype="int64", **root
            )
            run.collective(rank, "broadcast", at + 6_300, 200, size=4096, dtype=dtype, **root)
            for number in range(3):
                run.collective(rank, "broadcast", at + 6_600 + 200 * number, 150, size=9999, **root)
    (its,) = diagnose(run.trace(), select=["late-root"]).findings
    assert (its.ranks, its.cause) == ((0,), "host")
    assert advice in its.advice


@pytest.mark.parametrize(("busy_s", "confidence"), [(1.0, "medium"), (2.0, "low")])
def test_turns_are_not_sure_where_others_took_the_cores(
    training: Callable[..., Measures], busy_s: float, confidence: str
) -> None:
    machine = {**MACHINE, "usable_cores": 2, "busy_s": busy_s}
    rows = [{"rank": rank, "machine": machine} for rank in range(2)]
    run = training(lambda rank, step: 10_000 + 6_000 * (step % 2 == rank), steps=12)
    (turns,) = diagnose(replace(run, manifest={"ranks": rows}), select=["jitter"]).findings
    assert turns.confidence == confidence
    assert ("of the CPU cores" in turns.summary) == (confidence == "low")


def test_a_root_that_loads_reads_for_all() -> None:
    loads = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    run = Tiny(2, backend="gloo")
    for step in range(8):
        at = 10_000 * step
        for rank in range(2):
            call = at + 6_000 - 5_000 * rank
            run.step(rank, step, at, 10_000)
            run.op(rank, at, 1_000)
            run.gap(rank, call, at + 6_500 - call)
            root = {"root": 0, "thread": 1, "step": step, "asynchronous": 0}
            run.collective(rank, "broadcast", call, at + 6_500 - call, size=4096, **root)
        run.step(0, step, at + 1_000, 5_000, label=loads)
    (its,) = diagnose(run.trace(), select=["late-root"]).findings
    assert (its.ranks, its.cause) == ((0,), "loader")
    assert "reads for all ranks" in its.advice


def test_steps_in_which_others_do_next_to_nothing_say_little_of_how_much_longer_it_takes(
    training: Callable[..., Measures],
) -> None:
    """Rank 1 takes three times as long as the other, and in two steps far more times as long."""
    run = training(lambda rank, step: 12_000 if rank else 40 if step in (4, 7) else 4_000)
    (its,) = diagnose(run, select=["straggler"]).findings
    assert (its.ranks, its.confidence) == ((1,), "high")
