"""Who delays a run, of runs whose culprits are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from commtrace.causal.blame.culprit import Culprit
from commtrace.causal.blame.culprits import culprits, evened, stalls_in_turn
from commtrace.causal.blame.step_patterns import in_every, in_few, in_most
from commtrace.diagnosis import CannotLook
from commtrace.measures import Measures
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny
from tests.edited import edited

Make = Callable[..., Measures]
MS = 1_000_000
SHARE = 0.05


def uneven(rank: int, step: int) -> float:
    """10 ms, and a little that differs by rank and step."""
    return 10_000 + (37 * rank + 91 * step) % 120


def found(run: Measures) -> list[Culprit]:
    return list(culprits(run, SHARE).found)


def test_a_clean_run_has_none(training: Make) -> None:
    assert found(training(uneven, ranks=4)) == []


def test_a_sleeping_rank_is_named_with_what_it_costs_and_why(training: Make) -> None:
    run = training(uneven, ranks=3, sleep_us=lambda rank, step: 8_000 * (rank == 1))
    (its,) = found(run)
    assert its.ranks == (1,)
    assert its.cause == "host"
    assert its.persistent
    assert not its.spikes
    assert its.doubt is None
    assert its.saved_ns == its.on_top_ns == pytest.approx(6 * 8 * MS, rel=0.03)
    assert its.replayed_step_ns == pytest.approx(11.2 * MS, rel=0.03)
    assert its.waits.mostly == "collective"
    assert (its.waits.end_ns - its.waits.start_ns).sum() == pytest.approx(2 * 48 * MS, rel=0.05)


def in_turn(rank: int, step: int) -> float:
    """10 ms, or 18 while another has its core, in turn; together the same."""
    return 10_000 + 8_000 * ((rank + step) % 2) + (37 * rank + 91 * step) % 120


def test_what_a_rank_sleeps_is_not_hidden_by_what_all_compute_by_turns(training: Make) -> None:
    (its,) = found(training(in_turn, steps=8, sleep_us=lambda rank, step: 6_000 * (rank == 1)))
    assert (its.ranks, its.cause, its.persistent) == ((1,), "host", True)
    assert its.on_top_ns == pytest.approx(8 * 6 * MS, rel=0.03)
    assert found(training(in_turn, steps=8)) == []


def test_nor_is_what_it_alone_runs(training: Make) -> None:
    (its,) = found(training(in_turn, steps=8, also_us=lambda rank, step: 6_000 * (rank == 1)))
    assert (its.ranks, its.cause, its.persistent) == ((1,), "compute", True)
    assert its.on_top_ns == pytest.approx(8 * 6 * MS, rel=0.03)
    assert its.doubt is None


def test_what_runs_under_a_label_counts_once(training: Make) -> None:
    label = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    also = {"also_us": lambda rank, step: 6_000 * (rank == 1), "label": label}
    (its,) = found(training(in_turn, steps=8, **also))
    assert (its.ranks, its.cause) == ((1,), "loader")
    assert its.on_top_ns == pytest.approx(8 * 6 * MS, rel=0.03)


def test_who_sleeps_behind_another_that_computes_longer_delays_nobody(training: Make) -> None:
    run = training(
        lambda rank, step: uneven(rank, step) * (2 if rank == 2 else 1),
        ranks=3,
        sleep_us=lambda rank, step: 4_000 * (rank == 1),
    )
    assert found(run)[0].ranks == (2,)


def test_steps_in_which_nobody_calls_are_steps(training: Make) -> None:
    run = training(
        uneven,
        steps=8,
        also_us=lambda rank, step: 90_000 * (rank == 0 and step in (3, 6)),
        calling=lambda step: step in (3, 6),
    )
    (its,) = found(run)
    assert (its.ranks, its.cause) == ((0,), "compute")
    assert its.on_top_ns == pytest.approx(2 * 90 * MS, rel=0.2)


def test_a_rank_that_computes_longer(training: Make) -> None:
    run = training(lambda rank, step: uneven(rank, step) * (1.8 if rank == 2 else 1), ranks=4)
    (its,) = found(run)
    assert (its.ranks, its.cause, its.doubt) == ((2,), "compute", None)


def with_processors(run: Measures, *own_s: float) -> Measures:
    """As a recording has it: what each rank's process took of two cores in a second."""
    rows = [
        {"rank": rank, "machine": {"seconds": 1.0, "own_s": its, "usable_cores": 2, "cores": 2}}
        for rank, its in enumerate(own_s)
    ]
    return replace(run, manifest={"ranks": rows})


def by_turns(rank: int, step: int) -> float:
    """Ranks that wait for cores by turns, and rank 1 that computes a third more beside that."""
    return 10_000 + 9_000 * ((rank + step) % 3 == 0) + 3_500 * (rank == 1)


def test_processor_time_tells_who_works_more_in_a_fight_for_cores(training: Make) -> None:
    run = training(by_turns, ranks=4)
    assert not found(run)
    assert not found(with_processors(run, 0.4, 0.41, 0.39, 0.4))
    (its,) = found(with_processors(run, 0.4, 0.54, 0.39, 0.4))
    assert (its.ranks, its.cause) == ((1,), "compute")
    assert "not every step" in (its.doubt or "")


def test_who_took_no_more_processor_time_is_doubted(training: Make) -> None:
    run = training(lambda rank, step: uneven(rank, step) * (1.8 if rank == 2 else 1), ranks=4)
    (its,) = found(with_processors(run, 0.4, 0.41, 0.4, 0.39))
    assert its.doubt == "its process took 1.00 times the others' processor time, no more"


def test_a_little_more_compute_may_be_a_fight_for_cores(training: Make) -> None:
    run = training(lambda rank, step: uneven(rank, step) * (1.3 if rank == 2 else 1), ranks=4)
    (its,) = found(run)
    assert its.ranks == (2,)
    assert "1.30 times the typical" in (its.doubt or "")


def test_of_few_steps_how_much_more_it_computes_is_known_less_well(training: Make) -> None:
    longer = (1.45, 1.36, 1.33)
    run = training(
        lambda rank, step: 2 * uneven(rank, step) * (longer[step] if rank == 2 else 1),
        ranks=4,
        steps=3,
    )
    (its,) = found(run)
    assert "1.38 times the typical" in (its.doubt or "")


def test_few_steps_that_all_take_far_longer_are_no_chance_however_they_differ(
    training: Make,
) -> None:
    asleep = (40_000, 15_000, 70_000)
    run = training(uneven, steps=3, sleep_us=lambda rank, step: asleep[step] * rank)
    (its,) = found(run)
    assert (its.ranks, its.persistent) == ((1,), True)


def test_who_does_less_in_a_step_does_not_delay_every_step() -> None:
    """What a rank does behind its last call makes the next step begin late, and that shorter."""
    steps = np.array([138, 70, 219]) * MS
    less, more = np.array([208.0, -214, 222]) * MS, np.array([208.0, 214, 222]) * MS
    assert not in_every(steps, less, 20.0 * MS, 2 * MS, unlikely=False)
    assert in_every(steps, more, 20.0 * MS, 2 * MS, unlikely=False)


def test_two_equally_late_ranks_hide_each_other_and_are_named_together(training: Make) -> None:
    run = training(uneven, ranks=4, sleep_us=lambda rank, step: 8_000 * (rank in (1, 2)))
    (its,) = found(run)
    assert its.ranks == (1, 2)
    assert its.saved_ns == pytest.approx(6 * 8 * MS, rel=0.03)


@pytest.mark.parametrize(
    ("works_us", "named"),
    [
        ((20_000, 38_000, 41_000), (1, 2)),  # the last by turns in no step
        ((20_000, 30_000, 41_000), (2,)),  # one is late beside the other first
    ],
)
def test_two_of_three_ranks_that_are_nearly_as_late_are_named_together(
    training: Make, works_us: tuple[int, ...], named: tuple[int, ...]
) -> None:
    run = training(lambda rank, step: works_us[rank], ranks=3, steps=8)
    assert found(run)[0].ranks == named


def test_delays_of_unlike_length_are_named_one_on_top_of_the_other(training: Make) -> None:
    delays = {1: 10_000, 2: 8_000}
    run = training(uneven, ranks=5, sleep_us=lambda rank, step: delays.get(rank, 0))
    named = found(run)
    assert {rank for its in named for rank in its.ranks} == {1, 2}
    assert sum(its.on_top_ns for its in named) == pytest.approx(6 * 10 * MS, rel=0.03)


def test_ranks_that_take_turns_are_no_culprits_but_evening_saves(training: Make) -> None:
    run = training(uneven, ranks=4, steps=8, sleep_us=lambda rank, step: 8_000 * (rank == step % 4))
    assert found(run) == []
    assert evened(run, SHARE).sum() == pytest.approx(8 * 6 * MS, rel=0.05)


def test_of_more_ranks_than_steps_as_many_stall_in_turn_as_can(training: Make) -> None:
    run = training(uneven, ranks=5, steps=3, sleep_us=lambda rank, step: 30_000 * (rank == step))
    assert found(run) == []
    assert [its.rule for its in diagnose(run, select=["straggler", "jitter"]).findings] == [
        "jitter"
    ]


def test_in_one_step_nobody_takes_turns(training: Make) -> None:
    run = training(uneven, steps=1, sleep_us=lambda rank, step: 40_000 * rank)
    (its,) = found(run)
    assert its.ranks == (1,)


def test_two_ranks_stall_in_turn_in_two_of_three_steps_that_others_are_shorter_than(
    training: Make,
) -> None:
    """Half of each stall is less than such a step, and more than one without."""
    late = {(0, 0): 60_000, (1, 2): 60_000}
    run = training(uneven, steps=3, sleep_us=lambda rank, step: late.get((rank, step), 0))
    assert found(run) == []
    assert stalls_in_turn(run, SHARE) == (0, 2)


def test_few_steps_show_who_takes_turns_however_long_these_are(training: Make) -> None:
    asleep = (10_000, 24_000, 14_000)
    run = training(uneven, steps=3, sleep_us=lambda rank, step: asleep[step] * (rank == step % 2))
    (its,) = diagnose(run, select=["jitter"]).findings
    assert its.cost_ns == pytest.approx(24 * MS, rel=0.05)


def test_a_stall_once_is_a_spike(training: Make) -> None:
    run = training(
        uneven, ranks=3, steps=8, sleep_us=lambda rank, step: 40_000 * (rank == 2 and step == 4)
    )
    (its,) = found(run)
    assert (its.ranks, its.spikes, its.persistent) == ((2,), (4,), False)
    assert its.saved_ns == pytest.approx(40 * MS, rel=0.03)


@pytest.mark.parametrize(("others_ms", "doubted"), [(55, True), (45, False)])
def test_a_stall_that_the_others_have_half_as_long_may_be_the_machines(
    training: Make, others_ms: int, doubted: bool
) -> None:
    run = training(
        lambda rank, step: 10_000,
        ranks=4,
        steps=8,
        sleep_us=lambda rank, step: 1_000 * (100 if rank == 1 else others_ms) * (step == 4),
    )
    (its,) = found(run)
    assert (its.ranks, its.spikes) == ((1,), (4,))
    said = f"in the same steps the others stall so, too, for {others_ms} ms"
    assert (its.doubt == said) == doubted


@pytest.mark.parametrize("tail_us", [10, 6_000])
def test_a_stall_in_the_first_step_is_a_spike(training: Make, tail_us: float) -> None:
    """Where steps go on after their last operation what is before the first may not be whole."""
    run = training(
        uneven,
        steps=3,
        tail_us=tail_us,
        sleep_us=lambda rank, step: 40_000 * ((rank, step) == (0, 0)),
    )
    (its,) = found(run)
    assert (its.ranks, its.spikes) == ((0,), (0,))
    assert its.on_top_ns == pytest.approx(40 * MS, rel=0.03)


@pytest.mark.parametrize(("stall_ms", "found"), [(150, (1,)), (12, ())])
def test_of_few_steps_a_stall_longer_than_a_step_is_one(
    stall_ms: int, found: tuple[int, ...]
) -> None:
    """Of three steps one of which is cut there are two values, which scatter by the stall."""
    saved = np.array([0, stall_ms * MS, 0], dtype=np.int64)
    more = np.array([(stall_ms + 1) * MS, 1 * MS], dtype=np.float64)
    assert in_few(saved, more, MS, np.full(3, 25 * MS)) == found


def test_a_stall_in_every_other_step_stands_out_from_those_between(training: Make) -> None:
    run = training(
        uneven, steps=8, sleep_us=lambda rank, step: 60_000 * (rank == 1 and step % 2 == 0)
    )
    (its,) = found(run)
    assert (its.ranks, its.spikes, its.persistent) == ((1,), (0, 2, 4, 6), False)
    assert its.saved_ns == pytest.approx(4 * 60 * MS, rel=0.03)


def test_stalls_of_unlike_length_are_all_counted(training: Make) -> None:
    stalls = {2: 160_000, 5: 60_000}
    run = training(
        uneven, steps=8, sleep_us=lambda rank, step: stalls.get(step, 0) if rank == 1 else 0
    )
    (its,) = found(run)
    assert its.spikes == (2, 5)


def restless(rank: int, step: int) -> float:
    """Work that takes now one rank longer, now the other: they share cores."""
    more = (30, 4, 12, 21, 0, 33, 9, 26)
    return 10_000 + 1_000 * more[(step + 3 * rank) % 8]


def test_stalls_stand_out_where_only_compute_scatters(training: Make) -> None:
    run = training(
        restless, steps=8, sleep_us=lambda rank, step: 80_000 * (rank == 1 and step in (1, 5))
    )
    (its,) = found(run)
    assert (its.ranks, its.spikes, its.cause) == ((1,), (1, 5), "host")


def test_a_rank_that_sleeps_in_every_step_is_named_though_others_are_later_in_some(
    training: Make,
) -> None:
    """Then it saves nothing there, but sleeps all the same."""

    def work(rank: int, step: int) -> float:
        late = rank == 0 and step in (2, 3, 4, 5)
        return 10_000 + 1_000 * (6, 0, 12, 3, 9, 1, 10, 4)[(step + 3 * rank) % 8] + 28_000 * late

    assert not found(training(work, steps=8))
    (its,) = found(training(work, steps=8, sleep_us=lambda rank, step: 25_000 * (rank == 1)))
    assert (its.ranks, its.persistent, its.cause) == ((1,), True, "host")


def test_one_rank_has_nobody_to_be_held_against(training: Make) -> None:
    with pytest.raises(CannotLook, match="several ranks"):
        culprits(training(uneven, ranks=1), SHARE)


def test_who_is_hidden_by_a_later_rank_is_awaited_without_it(training: Make) -> None:
    """Rank 2 never comes last: but for rank 1, the others would wait for it."""
    delays = {1: 20_000, 2: 8_000}
    named = found(training(uneven, ranks=6, sleep_us=lambda rank, step: delays.get(rank, 0)))
    assert [its.ranks for its in named] == [(1,), (2,)]
    assert [its.waits.mostly for its in named] == ["collective"] * 2
    assert named[1].waits.call.size


def test_stalls_of_one_rank_and_another_are_by_turns(training: Make) -> None:
    """As where each collects its garbage after so many steps of its own."""
    run = training(uneven, steps=8, sleep_us=lambda rank, step: 40_000 * (step % 4 == 1 + 2 * rank))
    assert found(run) == []
    assert stalls_in_turn(run, SHARE) == (1, 3, 5, 7)
    (its,) = diagnose(run, select=["jitter"]).findings
    assert "late, in 4 of 8 steps: these would be 20 ms shorter" in its.summary


def test_without_steps_stalls_are_by_turns_in_its_tenths(training: Make) -> None:
    stalls = {(1, 22), (2, 10), (0, 34)}
    run = training(
        uneven, ranks=3, steps=40, sleep_us=lambda rank, step: 60_000 * ((rank, step) in stalls)
    )
    assert not found(edited(replace(run, steps=run.steps.iloc[:0]), "collectives", step=None))


def test_stalls_of_one_among_others_are_by_turns_though_not_all_stall(training: Make) -> None:
    """Rank 1 stalls twice, and 0 and 2 in other steps, as often together; 3 does not."""
    late = {(1, 1), (1, 4), (0, 2), (2, 6)}
    run = training(
        uneven, ranks=4, steps=8, sleep_us=lambda rank, step: 40_000 * ((rank, step) in late)
    )
    assert found(run) == []
    assert stalls_in_turn(run, SHARE) == (1, 2, 4, 6)


def test_a_rank_that_stalls_in_most_steps_takes_no_turns(training: Make) -> None:
    """In all but the first of five: as one of eight ranks in turn it would hardly."""
    run = training(
        uneven, ranks=8, steps=5, sleep_us=lambda rank, step: 40_000 * (rank == 1 and step > 0)
    )
    (its,) = found(run)
    assert (its.ranks, its.spikes) == ((1,), (1, 2, 3, 4))
    assert its.saved_ns == pytest.approx(4 * 40 * MS, rel=0.03)


@pytest.mark.parametrize(
    ("steps_ms", "ranks", "found"),
    [
        ((0, 40, 41, 39, 40), 8, (1, 2, 3, 4)),
        ((0, 40, 41, 39, 40), 2, ()),  # two ranks in turn may well do so
        ((0, 40, 12, 39, 40), 8, ()),  # nor are these alike
        ((20, 40, 41, 39, 40), 8, ()),  # nor is the first nothing
    ],
)
def test_most_steps_are_alike_and_the_others_far_below(
    steps_ms: tuple[int, ...], ranks: int, found: tuple[int, ...]
) -> None:
    assert in_most(np.array(steps_ms) * MS, MS, ranks) == found


def test_steps_like_those_that_hold_most_are_told_with_them() -> None:
    """Three of six would hold enough."""
    steps = np.array([40, 0, 41, 39, 38, 0]) * MS
    more = steps.astype(np.float64)
    more[3:5] = 0  # what they did there is counted elsewhere
    assert in_few(steps, more, MS, np.full(6, 25 * MS)) == (0, 2, 3, 4)


def test_a_stall_alone_is_by_no_turns(training: Make) -> None:
    run = training(uneven, steps=8, sleep_us=lambda rank, step: 30_000 * ((rank, step) == (0, 2)))
    assert stalls_in_turn(run, SHARE) == ()
    assert stalls_in_turn(training(uneven, steps=8), SHARE) == ()


@pytest.mark.parametrize(
    ("usual_ms", "left_ms", "spikes"), [(17, 0, (0, 2)), (40, 0, ()), (17, -33, ())]
)
def test_of_three_steps_two_stall_that_are_longer_by_more_than_a_step(
    usual_ms: int, left_ms: int, spikes: tuple[int, ...]
) -> None:
    """But not where another stalls in the one that is left: they take turns."""
    steps, more = np.array([33, 0, 33]) * MS, np.array([33.0, left_ms, 33.0]) * MS
    assert in_few(steps, more, 2 * MS, np.full(3, usual_ms * MS)) == spikes


def test_what_sets_in_is_named_since_then(training: Make) -> None:
    """Rank 1's loader gets slower and slower, from the fourth of eight steps on."""
    sleeps = [0, 0, 0, 15_000, 20_000, 30_000, 50_000, 60_000]
    run = training(
        lambda rank, step: 10_000 + 500 * ((rank + step) % 3),
        ranks=3,
        steps=8,
        sleep_us=lambda rank, step: sleeps[step] * (rank == 1),
    )
    (its,) = culprits(run, 0.05).found
    assert (its.ranks, its.spikes) == ((1,), (3, 4, 5, 6, 7))


def test_of_two_late_ranks_neither_hides_the_other_in_few_steps(training: Make) -> None:
    """Each is the later one in some step, by as much as it saves alone."""
    later = {(2, 0): 12_000, (3, 1): 10_000, (2, 2): 2_000}
    run = training(
        lambda rank, step: 8_000,
        ranks=4,
        steps=3,
        sleep_us=lambda rank, step: 20_000 * (rank > 1) + later.get((rank, step), 0),
    )
    (its,) = culprits(run, 0.05).found
    assert (its.ranks, its.persistent) == ((2, 3), True)


def test_who_is_mostly_late_is_so_beside_those_that_stall_in_turn(training: Make) -> None:
    """Rank 1 works 3 ms longer in every step, and each rank stalls in some steps of 12."""
    stalls = {(0, 2): 16_000, (0, 7): 14_000, (1, 0): 2_000, (1, 8): 7_000, (0, 9): 7_000}
    run = training(
        lambda rank, step: 10_000 + 3_000 * (rank == 1) + stalls.get((rank, step), 0),
        steps=12,
    )
    (its,) = culprits(run, 0.05).found
    assert (its.ranks, its.in_median) == ((1,), True)
    assert its.on_top_ns == 9 * 3 * MS  # in three steps rank 0 is later
    assert evened(run, 0.05).sum() == pytest.approx(20 * MS, rel=0.3)


def test_a_late_host_is_named_whole_though_one_of_its_ranks_is_mostly_the_last(
    training: Make,
) -> None:
    run = training(
        lambda rank, step: 30_000,
        ranks=4,
        hosts=("a", "a", "b", "b"),
        steps=8,
        sleep_us=lambda rank, step: 25_000 * (rank > 1) + 8_000 * (rank == 2 and step > 0),
    )
    (its,) = culprits(run, 0.05).found
    assert its.ranks == (2, 3)


@pytest.mark.parametrize(
    ("label", "part", "cause"),
    [
        ("save_checkpoint", 1.0, "checkpoint"),
        ("save_checkpoint", 0.4, "checkpoint"),  # and waits for its disk
        ("save_checkpoint", 0.2, "host"),
        ("eval", 1.0, "host"),
    ],
)
def test_a_stall_at_a_steps_end_is_one_of_the_next_call(
    label: str, part: float, cause: str
) -> None:
    """Rank 1's step 2 ends 20 ms late; the others' step 3, in which they wait for it."""
    run, late_us = Tiny(3, backend="gloo"), 20_000.0
    same = {"thread": 1, "asynchronous": 0, "size": 1 << 20}
    for rank, step in product(range(3), range(8)):
        start = 12_000.0 * step + late_us * (step > 2 or (step, rank) == (3, 1))
        waits = 0.0
        if step == 3 and rank != 1:
            start, waits = start - late_us, late_us
        stall = late_us * ((step, rank) == (2, 1))
        call = start + 10_000
        run.step(rank, step, start, 12_000 + waits + stall)
        run.op(rank, start, 10_000 + 13 * rank + 7 * step - 50)
        run.gap(rank, call, waits + 1_900)
        run.collective(rank, "all_reduce", call, waits + 1_900, step=step, **same)
        if stall:
            run.step(rank, step, start + 12_000, part * stall, label=label)
    (its,) = found(run.trace())
    assert (its.ranks, its.spikes) == ((1,), (3,))
    assert its.on_top_ns == pytest.approx(20 * MS, rel=0.02)
    assert its.cause == cause
