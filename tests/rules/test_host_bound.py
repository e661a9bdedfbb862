"""Python of the program's own: of all ranks, of one of them, and beside operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from msgspec import structs

from commtrace.causal.work.looks import longer_at
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

STEPS, STEP_US, LOOK_US = 8, 100_000, 3_000
LINE = "train.py:12 in tokenize"


def looping(
    loops_us: tuple[int, int],
    *,
    lines: tuple[str, str] = (LINE, LINE),
    in_operators: bool = False,
    seen: int = STEPS,
    sends: str | None = None,
    in_steps: Sequence[int] = range(STEPS),
    saves_us: int = 0,
) -> Measures:
    """Two ranks that loop for so long in each of some steps, and compute for 60 ms in all.

    All looks of so many steps see a line of theirs while they loop; in operators, if they ran these
    there. Behind it rank 1 may send an object, at the line that ``sends``; at first whoever loops
    may save a checkpoint.
    """
    run = Tiny(2, backend="gloo")
    for step in range(STEPS):
        start = step * STEP_US
        for rank, each in enumerate(loops_us):
            loops = each if step in in_steps else 0
            run.step(rank, step, start, STEP_US)
            if loops and saves_us:
                run.step(rank, step, start, saves_us, label="commtrace::checkpoint")
            if in_operators:
                run.op(rank, start, loops)
            for look in range(LOOK_US, loops + 1 if step < seen else 0, LOOK_US):
                run.look(rank, start + look - 1, lines[rank], LOOK_US)
            run.look(rank, start + loops + 30_000, "train.py:30 in main", LOOK_US)
            if sends:
                it_comes, told = start + max(loops_us), {"thread": 1, "asynchronous": 0, "root": 1}
                for begin, end, size, dtype in (
                    (start + loops, it_comes + 200, 8, "int64"),
                    (it_comes + 210, it_comes + 400, 4_000, "uint8"),
                ):
                    took, what = end - begin, {"size": size, "dtype": dtype, "called_at": sends}
                    run.collective(rank, "broadcast", begin, took, **what, **told)
                    run.gap(rank, begin, took)
                loops = it_comes + 410 - start
            call = start + loops + 60_000
            run.op(rank, start + loops, 60_000)
            run.gap(rank, call, start + 99_900 - call)
            took = start + 99_900 - call
            same = {"thread": 1, "asynchronous": 0}
            run.collective(rank, "all_reduce", call, took, size=1 << 20, **same)
    return run.trace()


def test_what_all_ranks_do_is_told_with_its_line_and_time() -> None:
    (found,) = diagnose(looping((30_000, 30_000)), select=["host-bound"]).findings
    assert (found.ranks, found.cause) == ((0, 1), "host")
    assert found.cost_ns == pytest.approx(STEPS * 30e6, rel=0.01)
    assert found.summary == (
        "all ranks run Python and no operator for 30 ms of each step, mostly at "
        f"{LINE} (30 ms a step)"
    )


def test_what_all_ranks_do_in_few_steps_is_told_so() -> None:
    run = looping((60_000, 60_000), in_steps=(2, 5))
    (found,) = diagnose(run, select=["host-bound"]).findings
    assert "all ranks run Python and no operator in 2 of 8 steps, 60 ms in each" in found.summary


def test_lines_of_one_function_count_together_and_the_longest_names_it() -> None:
    run = looping((30_000, 30_000), lines=("train.py:12 in tokenize", "train.py:15 in tokenize"))
    (found,) = diagnose(run, select=["host-bound"]).findings
    assert "(30 ms a step)" in found.summary


def test_a_line_that_calls_operators_is_no_python() -> None:
    run = looping((30_000, 30_000), in_operators=True)
    assert not diagnose(run, select=["host-bound"]).findings


def test_without_looks_the_rule_says_what_it_needs() -> None:
    said = diagnose(replace(looping((0, 0)), machines={}), select=["host-bound"]).skipped[
        "host-bound"
    ]
    assert said == "needs to know at which line ranks are: commtrace record looks every 10 ms"


def test_who_loops_alone_is_late_and_told_where() -> None:
    (found, *_) = diagnose(looping((0, 24_000))).findings
    assert (found.rule, found.ranks, found.confidence) == ("straggler", (1,), "high")
    assert found.advice.startswith(f"rank 1: at {LINE}, about 24 ms a step longer there: ")


def test_a_line_that_is_longer_in_some_steps_only_is_told_with_its_time_there() -> None:
    run = looping((0, 24_000), in_steps=(1, 4))
    (found,) = diagnose(run, select=["straggler"]).findings
    assert "stalls for 24 ms in 2 of" in found.summary
    assert found.advice.startswith(f"rank 1: at {LINE}, about 24 ms in such a step longer there: ")


@pytest.mark.parametrize(("saves_us", "told"), [(6_000, True), (900, False)])
def test_what_is_done_beside_a_checkpoint_is_told_with_it(saves_us: int, told: bool) -> None:
    """Of 24 ms a step."""
    (found, *_) = diagnose(looping((0, 24_000), saves_us=saves_us)).findings
    saves = "saving a checkpoint, which takes 6 ms a step: save checkpoints async"
    assert (saves in found.advice) == told


@pytest.mark.parametrize(
    ("loops_us", "told"),
    [((0, 9_000), True), ((0, 6_000), False), ((9_000, 18_000), False), ((9_000, 24_000), True)],
)
def test_fewer_looks_tell_a_line_that_no_other_rank_is_at(
    loops_us: tuple[int, int], told: bool
) -> None:
    """Each of 3 ms, in one step."""
    its = longer_at(looping(loops_us, seen=1), [1])
    assert (its is not None and its.line == LINE) == told


def test_who_runs_python_there_computes_however_much_the_others_do_elsewhere() -> None:
    """As a learner, whose process takes as much processor time as an actor's."""
    run = looping((0, 24_000))
    machines = {
        rank: structs.replace(its, own_s=1.0, seconds=2.0) for rank, its in run.machines.items()
    }
    (found, *_) = diagnose(replace(run, machines=machines)).findings
    assert "its process computed meanwhile, outside of torch" in found.advice


@pytest.mark.parametrize(
    ("sends", "advice"),
    [(LINE, "pickles them: send tensors"), ("train.py:20 in main", "tokenising")],
)
def test_a_root_of_objects_pickles_only_where_it_sends_them(sends: str, advice: str) -> None:
    run = looping((0, 24_000), sends=sends)
    machines = {
        rank: structs.replace(its, own_s=0.4 + 0.4 * rank, seconds=1.0)
        for rank, its in run.machines.items()
    }
    (found, *_) = diagnose(replace(run, machines=machines), select=["late-root"]).findings
    assert found.ranks == (1,)
    assert advice in found.advice


def test_what_one_loops_beyond_the_others_is_not_of_all() -> None:
    run = looping((12_000, 33_000))
    found = {one.rule: one for one in diagnose(run).findings}
    assert found["straggler"].ranks == (1,)
    assert "about 21 ms a step longer there" in found["straggler"].advice
    assert found["host-bound"].cost_ns == pytest.approx(STEPS * 12e6, rel=0.05)


def awake(run: Measures, loops_us: tuple[int, int]) -> Measures:
    """The same, where the recorder saw that both threads ran for all of that."""
    ran = [60_000 + loops for loops in loops_us]
    machines = {
        rank: structs.replace(its, steps=[(step, ran[rank], 0, ran[rank]) for step in range(STEPS)])
        for rank, its in run.machines.items()
    }
    return replace(run, machines=machines)


def test_python_that_others_do_not_run_is_no_chance_of_shared_cores() -> None:
    """1.2 times the others' work can be a slow core's, but not at a line of its own."""
    its_own = awake(looping((3_000, 18_000), lines=(LINE, "data.py:7 in clean")), (3_000, 18_000))
    same = awake(looping((3_000, 18_000)), (3_000, 18_000))
    confidence = [
        diagnose(run, select=["straggler"]).findings[0].confidence for run in (its_own, same)
    ]
    assert confidence == ["high", "low"]


def test_who_is_bound_to_the_cores_of_others_is_doubted() -> None:
    run = awake(looping((6_000, 36_000)), (6_000, 36_000))
    machines = {
        rank: structs.replace(its, cores=4, core_ids=[1]) for rank, its in run.machines.items()
    }
    (its,) = diagnose(replace(run, machines=machines), select=["straggler"]).findings
    assert its.confidence == "low"
    assert "ranks 0–1 are bound to the same cores, and take these by turns" in its.summary
    (its,) = diagnose(run, select=["straggler"]).findings
    assert its.confidence == "high"


@pytest.mark.parametrize(
    ("label", "does", "advice"),
    [
        ("commtrace::garbage-collection", "collect garbage", "leave gc.collect() out of the steps"),
        ("commtrace::checkpoint", "save checkpoints", "save checkpoints asynchronously"),
    ],
)
def test_what_all_ranks_do_under_a_label(label: str, does: str, advice: str) -> None:
    run = Tiny(2, backend="gloo")
    for step in range(STEPS):
        start = step * STEP_US
        for rank in (0, 1):
            run.step(rank, step, start, STEP_US)
            run.step(rank, step, start, 20_000, label=label)
            run.gap(rank, start, 20_000)
            run.op(rank, start + 20_000, 60_000)
            run.gap(rank, start + 80_000, 19_900)
            same = {"thread": 1, "asynchronous": 0}
            run.collective(rank, "all_reduce", start + 80_000, 19_900, size=1 << 20, **same)
    (its, *_) = diagnose(run.trace()).findings
    assert (its.rule, its.ranks) == ("host-bound", (0, 1))
    assert its.summary == f"all ranks {does} for 20 ms of each step"
    assert its.advice.startswith(advice)
    assert its.cost_ns == pytest.approx(STEPS * 20e6, rel=0.01)


def test_of_a_function_that_all_are_in_the_line_is_that_of_the_late_one() -> None:
    """All of it is one function, in which both compute at one line for 60 ms a step."""
    run = Tiny(2, backend="gloo")
    for step in range(STEPS):
        start = step * STEP_US
        for rank in range(2):
            loops = 24_000 * rank
            run.step(rank, step, start, STEP_US)
            run.op(rank, start + loops, 60_000)
            for look in range(LOOK_US, loops + 60_001, LOOK_US):
                line = "train.py:68 in main" if look <= loops else "train.py:52 in main"
                run.look(rank, start + look - 1, line, LOOK_US)
            call = start + loops + 60_000
            took = start + 99_900 - call
            run.gap(rank, call, took)
            same = {"thread": 1, "asynchronous": 0}
            run.collective(rank, "all_reduce", call, took, size=1 << 20, **same)
    its = longer_at(run.trace(), [1])
    assert its is not None
    assert its.line == "train.py:68 in main"
    assert its.more_ns == pytest.approx(STEPS * 24e6, rel=0.1)
