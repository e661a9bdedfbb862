"""Which lines of a program called the operations of a finding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import commtrace
from commtrace.arrays import Int64
from commtrace.measures import Measures
from commtrace.metrics.run.called_at import called_at
from commtrace.metrics.run.collectives import collectives
from commtrace.metrics.run.waits import matched
from commtrace.record import Plan, record_program
from commtrace.rules import diagnose
from commtrace.synthetic import Tiny

PROGRAM = """
import time
import torch
import torch.distributed as dist

def gather_loss(loss):
    dist.all_reduce(loss)

dist.init_process_group("gloo")
gradients = torch.zeros(100_000)
for _ in range(9):
    dist.all_reduce(gradients)
    time.sleep(0.03 * dist.get_rank())
    gather_loss(torch.zeros(1))
    __import__("commtrace").step()
dist.destroy_process_group()
"""


def every(run: Measures) -> Int64:
    return np.unique(matched(run).waits.ints("operation"))


def two_ranks(*lines: str | None) -> Measures:
    run = Tiny(2, backend="gloo")
    for number, line in enumerate(lines):
        for rank in (0, 1):
            run.collective(rank, "all_reduce", 100.0 * number, 10, size=400, called_at=line)
    return run.trace()


def test_the_most_frequent_lines_come_first_until_nine_tenths() -> None:
    run = two_ranks(*["a.py:1"] * 5, *["b.py:2"] * 14, "c.py:3")
    assert called_at(run, every(run), ()) == ("b.py:2", "a.py:1")
    assert called_at(run, every(run)[:5], ()) == ("a.py:1",)
    assert called_at(run, every(run), (1,)) == ("b.py:2", "a.py:1")


def test_many_lines_and_unknown_ones_are_none() -> None:
    many = two_ranks(*(f"a.py:{number}" for number in range(5)))
    assert called_at(many, every(many), ()) == ()
    half = two_ranks("a.py:1", None)
    assert called_at(half, every(half), ()) == ()
    unknown = two_ranks(None, None)
    assert called_at(unknown, every(unknown), ()) == ()
    assert called_at(half, every(half)[:0], ()) == ()


@pytest.mark.usefixtures("preloaded")
def test_a_recording_tells_the_line_before_which_a_rank_is_late(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    folder = record_program(
        [str(tmp_path / "train.py")],
        plan=Plan(first=3, steps=5),
        world_size=2,
        out=tmp_path / "out",
    )
    found = diagnose(commtrace.load(folder).measures).findings
    late = next(finding for finding in found if finding.rule == "straggler")
    assert late.called_at == ("train.py:7 in gather_loss",)
    assert "called at train.py:7 in gather_loss" in str(late)


def test_a_kind_of_operation_has_the_line_of_nearly_all_its_calls() -> None:
    one = two_ranks(*["a.py:1"] * 9, None)
    assert collectives(one).coded("called_at").decoded() == ["a.py:1"]
    several = two_ranks("a.py:1", "b.py:2")
    assert collectives(several).coded("called_at").decoded() == [None]
    unknown = two_ranks(None)
    assert collectives(unknown).coded("called_at").decoded() == [None]
