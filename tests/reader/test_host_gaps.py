"""When a host that calls communication ran no operator."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def gaps(read: Any, events: Any) -> Any:
    """The gaps of host threads, in µs, around a call at 100 whose work ends at 300."""

    def found(*more: Any, work: tuple[float, float] = (110, 190)) -> list[tuple[int, int, int]]:
        shaped = events.shaped([[[10, 5]], []], ["TensorList", ""])
        table = read(
            [
                events.op("c10d::allreduce_", 100, 5, **shaped),
                events.note("gloo:all_reduce", *work, 50, **events.shaped([[10, 5]], ["float"])),
                *more,
            ],
            distributedInfo={"rank": 0, "world_size": 2, "backend": "gloo"},
        ).host_gaps
        base = min(row["start_ns"] for row in table) if table else 0
        return [
            (row["thread"], (row["start_ns"] - base) // 1000, row["duration_ns"] // 1000)
            for row in table
        ]

    return found


def test_the_time_of_a_call_and_its_wait_is_a_gap(gaps: Any, events: Any) -> None:
    assert gaps(events.op("aten::mm", 0, 100), events.op("aten::mm", 310, 50)) == [(1, 0, 210)]


def test_operators_end_a_gap_and_short_ones_are_none(gaps: Any, events: Any) -> None:
    ops = [events.op("aten::mm", ts, dur) for ts, dur in ((0, 100), (150, 50), (203, 90), (310, 5))]
    assert gaps(*ops) == [(1, 0, 50), (1, 193, 17)]


def test_operators_that_hold_others_are_no_work_themselves(gaps: Any, events: Any) -> None:
    """An optimizer's step that waits within is busy only while its own operators run."""
    ops = [events.op("aten::mm", 0, 100), events.op("outer", 90, 300), events.op("inner", 305, 40)]
    assert gaps(*ops)[0] == (1, 0, 205)


def test_a_data_loader_is_at_work_other_labels_are_not(gaps: Any, events: Any) -> None:
    ops = [events.op("aten::mm", 0, 100), events.op("aten::mm", 310, 5)]
    loads = events.note("enumerate(DataLoader)#_SingleProcess", 150, 60)
    label = events.note("my own label", 150, 60)
    assert gaps(*ops, loads) == [(1, 0, 50), (1, 110, 100)]
    assert gaps(*ops, label) == [(1, 0, 210)]


def test_what_is_called_within_a_label_is_waited_for_there(gaps: Any, events: Any) -> None:
    """Ranks that save a checkpoint agree on it: the call is at 100, its work ends at 300."""
    ops = [events.op("aten::mm", 0, 40), events.op("aten::mm", 350, 5)]
    saves = events.note("commtrace::checkpoint", 45, 300)
    assert gaps(*ops, saves) == [(1, 0, 200)]
    before = events.note("commtrace::checkpoint", 45, 50)
    assert gaps(*ops, before) == [(1, 0, 255)]


def test_what_lies_before_the_call_and_behind_its_end_is_none(gaps: Any, events: Any) -> None:
    ops = [events.op("aten::mm", ts, 10) for ts in (0, 50, 90, 350, 400)]
    assert gaps(*ops) == [(1, 0, 250)]


def test_other_threads_have_none(gaps: Any, events: Any) -> None:
    ops = [events.op("aten::mm", 0, 100), events.op("aten::mm", 310, 5)]
    assert gaps(*ops, events.op("aten::mm", 0, 10, tid=9)) == [(1, 0, 210)]


def test_labelled_waits_are_all_of_a_gap(gaps: Any, events: Any) -> None:
    ops = [events.op("aten::mm", 0, 100), events.op("aten::mm", 310, 5)]
    assert gaps(*ops, events.note("commtrace::wait", 250, 60)) == [(1, 0, 60)]


def test_without_a_wait_of_its_own_a_gap_is_none_if_each_call_has_one(
    gaps: Any, events: Any
) -> None:
    """The host sleeps from the call to 200, works, and then waits."""
    ops = [events.op("aten::mm", ts, dur) for ts, dur in ((0, 100), (200, 50), (310, 5))]
    waits = events.note("commtrace::wait", 260, 45)
    assert gaps(*ops, waits) == [(1, 0, 45)]
    another = events.op(
        "c10d::allreduce_", 120, 5, **events.shaped([[[10, 5]], []], ["TensorList"])
    )
    work = events.note("gloo:all_reduce", 301, 8, 50, **events.shaped([[10, 5]], ["float"]))
    assert gaps(*ops, waits, another, work) == [(1, 0, 100), (1, 160, 45)]


def test_calls_that_wait_without_a_label_wait_beside_many_that_have_one(
    gaps: Any, events: Any
) -> None:
    """A thread's broadcasts are waited for by Python, its all_reduce, as DDP's, by C++."""
    ops = [events.op("aten::mm", ts, dur) for ts, dur in ((0, 100), (310, 5))]
    shape = events.shaped([[[10, 5]], []], ["TensorList"])
    for ts in range(400, 1400, 100):
        ops += [events.op("aten::mm", ts, 5), events.op("c10d::broadcast_", ts + 10, 5, **shape)]
        work = events.shaped([[10, 5]], ["float"])
        ops += [events.note("gloo:broadcast", ts + 20, 50, 50, **work)]
        ops += [events.note("commtrace::wait", ts + 30, 40)]
    found = gaps(*ops)
    assert found[0] == (1, 0, 210)
    assert {duration for _, _, duration in found[1:]} == {40}
    assert len(found) == 11


def test_a_library_s_operator_is_at_work_between_those_that_it_calls(
    gaps: Any, events: Any
) -> None:
    """A matrix product that prepares for 2 µs within, and computes by itself then."""
    product = [events.op("aten::addmm", 120, 100), events.op("aten::expand", 121, 2)]
    ops = [events.op("aten::mm", 0, 100), events.op("aten::mm", 310, 5), *product]
    assert gaps(*ops) == [(1, 0, 20), (1, 120, 90)]


def test_autograd_s_operators_and_those_that_communicate_wait_within(
    gaps: Any, events: Any
) -> None:
    """A hook of a gradient's, and an operator of a tensor that is gathered first."""
    ops = [events.op("aten::mm", 0, 90), events.op("aten::mm", 310, 5)]
    name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    hook = [events.op(name, 120, 100), events.op("aten::detach", 121, 1)]
    gathered = events.op("aten::linear", 95, 150)  # around the call at 100
    assert gaps(*ops, *hook) == [(1, 0, 31), (1, 32, 188)]
    assert gaps(*ops, gathered) == [(1, 0, 220)]


COPY_OUT = "torch.distributed.ddp.reducer::copy_bucket_to_grad"


@pytest.mark.parametrize("views", [0, 2])
def test_ddp_s_bucket_was_waited_for_where_it_is_taken_apart(
    gaps: Any, events: Any, views: int
) -> None:
    """It is at 250, though its end is noted at 300 only: what is idle behind it is no wait."""
    viewed = [events.op("aten::as_strided", 250 + i, 1) for i in range(views)]
    at = 250 + views
    copied = [events.op(COPY_OUT, at, 4), events.op("aten::copy_", at + 1, 2)]
    ops = [events.op("aten::mm", 0, 100), *viewed, *copied, events.op("aten::add", 270, 2)]
    rest = [events.op("aten::mm", 310, 5)]
    assert gaps(*ops, *rest) == [(1, 0, 150)]


def test_ddp_that_looks_for_unused_parameters_asks_before_each_copy(gaps: Any, events: Any) -> None:
    """Its flags are read between a bucket's views and copies: none of this is another wait."""
    ops = [events.op("aten::mm", 0, 100), events.op("aten::mm", 310, 5)]
    ops += [events.op("aten::as_strided", 250 + i, 1) for i in range(2)]
    for at in (252, 262):
        ops += [events.op("aten::select", at, 2), events.op("aten::as_strided", at + 1, 1)]
        ops += [events.op("aten::item", at + 2, 2)]
        ops += [events.op("aten::_local_scalar_dense", at + 3, 1)]
        ops += [events.op(COPY_OUT, at + 4, 4), events.op("aten::copy_", at + 5, 2)]
    assert gaps(*ops) == [(1, 0, 150)]
