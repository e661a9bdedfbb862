"""What the labels say of the critical path's time without operators."""

from __future__ import annotations

import pytest

from commtrace.causal.critical_path import critical_path
from commtrace.causal.path_causes import labelled_on_path, lines_on_path
from commtrace.measures import Measures
from commtrace.reports.content.critical_path import sentence
from commtrace.synthetic import Tiny

MS = 1_000_000
STEPS = 4


def trained(*labels: tuple[str, float]) -> Measures:
    """Steps of 10 ms: 6 without operators, under these labels for so many ms, 3 of compute, 1."""
    run = Tiny(2, backend="gloo")
    for step in range(STEPS):
        for rank in range(2):
            at = 10_000.0 * step
            run.step(rank, step, at, 10_000)
            run.gap(rank, at, 6_000)
            begin = at
            for label, took in labels:
                run.step(rank, step, begin, 1_000 * took, label)
                begin += 1_000 * took
            run.op(rank, at + 6_000, 3_000)
            run.collective(rank, "all_reduce", at + 9_000, 990, size=1 << 20, thread=1)
            run.gap(rank, at + 9_000, 1_000)
    return run.trace()


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def test_loading_that_all_ranks_wait_for_is_told_of_the_host() -> None:
    run = trained((LOADER, 4), ("commtrace::checkpoint", 0.1))
    found = labelled_on_path(run)
    assert found["loader"] == pytest.approx(4 * STEPS * MS)
    assert found["checkpoint"] == pytest.approx(0.1 * STEPS * MS)
    said = sentence(run)
    assert said is not None
    assert "60 % host (data loading 40 %), 30 % compute" in said


def test_without_labels_nothing_is_told() -> None:
    run = trained()
    assert not labelled_on_path(run)
    assert "60 % host, " in (sentence(run) or "")


def test_of_the_hosts_time_looks_tell_the_lines() -> None:
    """Labels aside: of 30 ms a step two thirds are at one line, and the rest at another."""
    run = Tiny(ranks=2, backend="gloo")
    for step in range(4):
        start = step * 50_000
        for rank in (0, 1):
            run.step(rank, step, start, 50_000)
            run.gap(rank, start, 30_000)
            for at in (4_999, 9_999, 14_999, 19_999):
                run.look(rank, start + at, "data/clean.py:7 in clean", 5_000)
            for at in (24_999, 29_999):
                run.look(rank, start + at, "train.py:30 in main", 5_000)
            run.op(rank, start + 30_000, 17_000)
            call = start + 47_000
            run.gap(rank, call, 2_900)
            same = {"thread": 1, "asynchronous": 0}
            run.collective(rank, "all_reduce", call, 2_900, size=1 << 20, **same)
    trace = run.trace()
    lines = lines_on_path(trace)
    host = critical_path(trace).take(critical_path(trace).coded("kind").being("host"))
    assert sum(lines.values()) == pytest.approx(int(host.ints("time_ns").sum()), rel=1e-6)
    assert lines["data/clean.py:7 in clean"] == pytest.approx(2 * lines["train.py:30 in main"])
    assert "host (at clean.py:7 in clean " in str(sentence(trace))
