"""Sums that ranks make by hand of what they receive, where an all_reduce makes them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from commtrace.diagnosis import Finding
from commtrace.rules import diagnose
from commtrace.synthetic import BASE_NS, Tiny

STEPS, CALL_US, OP_US = 4, 1_000, 200
SIZE = 1 << 20
ADD, SCALE, USE = ("aten::add_",), ("aten::add_", "aten::div_"), ("aten::mm",)
STACK = ("aten::stack", "aten::mean")


class Program:
    """A program's steps, written call by call: each rank calls when it has done what it did."""

    def __init__(
        self, ranks: int, hosts: tuple[str, ...] = ("host",), tensor_bytes: int = SIZE
    ) -> None:
        self.run = Tiny(ranks, backend="gloo", hosts=hosts)
        self.tensor_bytes = tensor_bytes
        self.free = [0.0] * ranks

    def line(
        self,
        op: str | dict[int, str],
        ranks: dict[int, int],
        behind: tuple[str, ...] = (),
        by: int | None = None,
    ) -> None:
        """A call on some ranks, each with its peer or its root; what one, or all, run behind it."""
        end = max(self.free[rank] for rank in ranks) + CALL_US
        for rank, other in ranks.items():
            its = op if isinstance(op, str) else op[rank]
            begin = self.free[rank]
            call = {"asynchronous": 0, "launch_ns": BASE_NS + round(begin * 1e3), "thread": 1}
            who = {"peer" if its in ("send", "recv") else "root": other}
            size = self.tensor_bytes * (self.run.ranks if its in ("gather", "scatter") else 1)
            self.run.collective(rank, its, begin + 5, end - begin - 5, size=size, **call, **who)
            self.run.gap(rank, begin, end - begin)
            self.free[rank] = end + 20
            if by in (None, rank):
                self.work(rank, behind)

    def work(self, rank: int, names: tuple[str, ...]) -> None:
        """Operators on one rank."""
        for name in names:
            self.run.op(rank, self.free[rank], OP_US, name=name)
            self.free[rank] += OP_US + 10

    def steps(self) -> Iterator[int]:
        """The steps, each of which begins with a forward pass."""
        begin = 0.0
        for step in range(STEPS):
            for rank in range(self.run.ranks):
                self.work(rank, USE)
            yield step
            end = max(self.free)
            for rank in range(self.run.ranks):
                self.run.step(rank, step, begin, end - begin)
            begin = end


def found(program: Program) -> list[Finding]:
    return list(diagnose(program.run.trace(), select=["decomposed-all-reduce"]).findings)


def hub(ranks: int, behind: tuple[str, ...] = SCALE, **more: tuple[str, ...]) -> Program:
    """Rank 0 receives from each other rank, and sends to each."""
    its = Program(ranks, **more)
    for _ in its.steps():
        for _ in range(2):
            for rank in range(1, ranks):
                its.line({rank: "send", 0: "recv"}, {rank: 0, 0: rank}, behind, by=0)
            for rank in range(1, ranks):
                its.line({rank: "recv", 0: "send"}, {rank: 0, 0: rank})
    return its


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_rank_that_sums_what_all_send_it_and_sends_it_back(ranks: int) -> None:
    (finding,) = found(hub(ranks))
    assert "rank 0 receives 1.05 MB from every other rank, sums, and sends each" in finding.summary
    assert "8 all_reduces by hand" in finding.summary
    assert "call all_reduce" in finding.advice
    summing_us = 2 * OP_US * (ranks - 1)
    assert finding.cost_ns == pytest.approx(STEPS * 2 * summing_us * 1e3, rel=0.15)


def test_on_hosts_of_their_own_one_link_carries_it_all() -> None:
    (together,), (apart,) = found(hub(3)), found(hub(3, hosts=("a", "b", "c")))
    assert apart.cost_ns > together.cost_ns + STEPS * 2 * 4 * CALL_US * 1e3 / 2


def test_a_stage_that_computes_with_what_it_gets_is_no_sum() -> None:
    assert not found(hub(2, USE))


def test_a_copy_of_what_comes_is_no_sum() -> None:
    assert not found(hub(2, ("aten::copy_",)))


def rooted(
    second: str, behind: tuple[str, ...] = STACK, sums: int = 2, tensor_bytes: int = SIZE
) -> Program:
    its = Program(4, tensor_bytes=tensor_bytes)
    for _ in its.steps():
        for _ in range(sums):
            its.line("gather", dict.fromkeys(range(4), 0), behind, by=0)
            if second:
                its.line(second, dict.fromkeys(range(4), 0))
    return its


@pytest.mark.parametrize("second", ["broadcast", "scatter"])
def test_what_is_gathered_summed_and_sent_again(second: str) -> None:
    (finding,) = found(rooted(second))
    assert "rank 0 gathers 1.05 MB from every rank, sums" in finding.summary
    assert finding.cost_ns == pytest.approx(STEPS * 2 * 2 * OP_US * 1e3, rel=0.15)


@pytest.mark.parametrize(("sums", "calls_saved"), [(5, 8), (3, 0)])
def test_of_small_ones_that_a_step_has_several_of_one_would_do(sums: int, calls_saved: int) -> None:
    """Of five gathers and as many scatters a step has one each when all are one flat tensor."""
    (finding,) = found(rooted("scatter", sums=sums, tensor_bytes=1_000))
    summing_us = sums * 2 * OP_US
    saved_us = summing_us + calls_saved * CALL_US
    assert finding.cost_ns == pytest.approx(STEPS * saved_us * 1e3, rel=0.1)


def test_what_only_the_root_uses_it_may_gather() -> None:
    assert not found(rooted(""))
    assert not found(rooted("broadcast", ("aten::stack", "aten::mm")))


def in_turn(behind: tuple[str, ...], roots: tuple[int, ...] = (0, 1, 2, 3)) -> Program:
    its = Program(4)
    for _ in its.steps():
        for root in roots:
            its.line("broadcast", dict.fromkeys(range(4), root), behind)
    return its


def test_broadcasts_of_all_that_all_sum() -> None:
    """Each sends its tensor to three others, where a ring sends two thirds of that, twice."""
    (finding,) = found(in_turn(ADD))
    assert "every rank broadcasts 1.05 MB in turn, and each sums all of them" in finding.summary
    half = STEPS * 4 * CALL_US / 2
    assert finding.cost_ns == pytest.approx((half + STEPS * 4 * OP_US) * 1e3, rel=0.1)


def test_parameters_that_their_owners_send_are_no_sum() -> None:
    assert not found(in_turn(("aten::copy_",)))
    assert not found(in_turn(ADD, roots=(0, 0, 0, 0)))


def around(
    ranks: int, behind: tuple[str, ...], times: int | None = None, rings: int = 1
) -> Program:
    """Messages to the next rank of each ring."""
    its, long = Program(ranks), ranks // rings
    for _ in its.steps():
        for _ in range(ranks - 1 if times is None else times):
            for way, to in (("send", 1), ("recv", -1)):
                next_to = {one: one // long * long + (one + to) % long for one in range(ranks)}
                its.line(way, next_to, behind if way == "recv" else ())
    return its


def test_a_ring_of_whole_tensors() -> None:
    (finding,) = found(around(4, ADD))
    assert "every rank hands on 1.05 MB around a ring, and sums what it gets" in finding.summary
    assert finding.cost_ns > STEPS * 3 * CALL_US / 2 * 1e3
    assert finding.confidence == "low", "neighbours may average"


def test_two_rings_are_not_one() -> None:
    assert not found(around(8, ADD, times=7, rings=2))


@pytest.mark.parametrize(("behind", "times"), [(USE, None), (ADD, 1)])
def test_attention_around_a_ring_and_neighbours_are_no_sums(
    behind: tuple[str, ...], times: int | None
) -> None:
    assert not found(around(4, behind, times))
