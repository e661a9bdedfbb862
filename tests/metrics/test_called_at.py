"""Which lines of a program called the operations of a finding."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import Int64
from commtrace.measures import Measures
from commtrace.metrics.run.called_at import called_at
from commtrace.metrics.run.collectives import collectives
from commtrace.metrics.run.waits import matched
from commtrace.synthetic import Tiny


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


def test_a_kind_of_operation_has_the_line_of_nearly_all_its_calls() -> None:
    one = two_ranks(*["a.py:1"] * 9, None)
    assert collectives(one).coded("called_at").decoded() == ["a.py:1"]
    two = two_ranks("a.py:1", "b.py:2", "b.py:2")
    assert collectives(two).coded("called_at").decoded() == ["b.py:2; a.py:1"]
    several = two_ranks("a.py:1", "b.py:2", "c.py:3")
    assert collectives(several).coded("called_at").decoded() == [None]
    unknown = two_ranks(None)
    assert collectives(unknown).coded("called_at").decoded() == [None]
