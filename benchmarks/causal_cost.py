"""``python -m benchmarks.causal_cost``: processor time of the causal model against matching's.

The runs of ``benchmarks.matching``, with all ranks on CPUs: jitter without a culprit, for which
most has to be tried.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.matching import generate
from commtrace import trace_tables as schema
from commtrace.arrays import NULL, Int64, integers
from commtrace.causal.blame.culprits import culprits
from commtrace.causal.run.run_graph import run_graph
from commtrace.measures import Measures
from commtrace.metrics.run.waits import matched
from commtrace.rules import diagnose
from commtrace.table import Coded

SIZES = ((16, 1000), (16, 5000), (64, 1000), (64, 5000))
STEP = 50  # operations
BEFORE_NS = 300_000


def on_cpus(run: Measures) -> Measures:
    """The run with its ranks on CPUs, that block in every operation, and with steps."""
    calls = run.collectives.copy()
    rank, start = integers(calls["rank"]), integers(calls["start_ns"])
    duration = integers(calls["duration_ns"])
    step = _in_turn(run) // STEP
    calls["device"] = calls["device"].cat.rename_categories(["cpu"])
    for column, values in {
        "launch_ns": start,
        "thread": np.ones(rank.size, np.int64),
        "asynchronous": np.zeros(rank.size, np.int64),
        "step": step,
    }.items():
        calls[column] = values
        calls[column] = calls[column].astype(run.collectives[column].dtype)
    first = np.flatnonzero(np.diff(rank * (step.max() + 1) + step, prepend=-1))
    last = np.append(first[1:], rank.size) - 1
    begin = start[first] - BEFORE_NS
    steps: dict[str, Any] = {
        "rank": rank[first],
        "step": step[first],
        "label": Coded(np.full(first.size, -1, np.int32), ()),
        "thread": np.full(first.size, NULL),
        "start_ns": begin,
        "duration_ns": (start + duration)[last] - begin,
    }
    gaps = {"rank": rank, "thread": np.ones(rank.size, np.int64)}
    gaps |= {"start_ns": start, "duration_ns": duration, "step": step}
    return replace(
        run,
        collectives=calls,
        steps=schema.STEPS.rows(steps),
        host_operators=schema.HOST_OPERATORS.rows(),
        host_gaps=schema.HOST_GAPS.rows(gaps),
    )


def _in_turn(run: Measures) -> Int64:
    """Which of the run's operations each call is of: ranks lack some, and so have none of these."""
    its = matched(run)
    order = its.operations.ints("last_end_ns").argsort().argsort()
    turn: Int64 = order[its.operations.ints("operation").searchsorted(its.waits.ints("operation"))]
    return turn


PARTS: tuple[Callable[[Measures], object], ...] = (
    matched,
    run_graph,
    lambda run: culprits(run, 0.05),
    diagnose,
)


def seconds(ranks: int, operations: int) -> list[float]:
    """Processor time of matching, and what the graph, culprits and the other rules add."""
    run = on_cpus(generate(ranks, operations))
    moments = [time.process_time()]
    for part in PARTS:
        part(run)
        moments.append(time.process_time())
    return np.diff(moments).tolist()


def main() -> None:
    """Measure, and print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    print("| ranks | operations | matching, s | graph, s | culprits, s | all rules, s | ratio |")
    print("|---|---|---|---|---|---|---|")
    for ranks, operations in SIZES:
        matching, *parts = seconds(ranks, operations)
        whole = sum(parts)
        cells = [str(ranks), str(operations)]
        cells += [f"{part:.2f}" for part in (matching, *parts[:2], whole)]
        print(f"| {' | '.join(cells)} | {whole / matching:.1f} |", flush=True)


if __name__ == "__main__":
    main()
