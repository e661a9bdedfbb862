"""``python -m benchmarks.matching``: how long ranks take to be matched, and how that grows.

Every operation looks the same and has no identifier, windows open one after the other,
one event in 200 is lost, half of the ranks are on a second host: the hardest case.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from commtrace import trace_tables as schema
from commtrace.arrays import NULL
from commtrace.matching import match
from commtrace.measures import Measures
from commtrace.metrics.run.waits import matched
from commtrace.table import Coded

RANKS = (8, 16, 32, 64)
OPERATIONS = (500, 1000, 2000, 5000)
BASE_NS = 1_700_000_000_000_000_000
OFFSET_NS, DRIFT = 3_141_592, 30e-6
SIZE = 1 << 20


def generate(ranks: int, operations: int, seed: int = 0) -> Measures:
    """A run whose ranks wait for the last one in every operation."""
    rng = np.random.default_rng(seed)
    arrival = np.empty((operations, ranks))
    end = np.empty((operations, ranks))
    now = np.zeros(ranks)
    for i in range(operations):
        arrival[i] = now + rng.exponential(600_000) + rng.exponential(120_000, ranks)
        end[i] = arrival[i].max() + 100_000 + np.abs(rng.normal(0, 5_000, ranks))
        now = end[i]
    second = np.arange(ranks) >= ranks // 2
    shown = [BASE_NS + np.rint(t + second * (OFFSET_NS + DRIFT * t)) for t in (arrival, end)]
    kept = rng.random((operations, ranks)) >= 0.005
    kept &= np.arange(operations)[:, None] >= 2 * np.arange(ranks)
    # By rank, as the reader leaves them.
    rank = np.broadcast_to(np.arange(ranks), kept.shape).T[kept.T]
    start, stop = (times.T[kept.T].astype(np.int64) for times in shown)
    return _trace(ranks, rank, start, stop)


def _trace(ranks: int, rank: np.ndarray, start: np.ndarray, end: np.ndarray) -> Measures:
    known: dict[str, object] = {
        "rank": rank,
        "start_ns": start,
        "duration_ns": end - start,
        "size_bytes": np.full(rank.size, SIZE),
        "group_size": np.full(rank.size, ranks),
        "stream": np.full(rank.size, 20),
    }
    text = {"group": "0", "op": "all_reduce", "dtype": "float32", "device": "cuda:0"}
    codes = np.zeros(rank.size, dtype=np.int32)
    for column in schema.COLLECTIVES.columns:
        if column.dtype == "category":
            name = text.get(column.name)
            known[column.name] = Coded(codes - (name is None), (name,) if name else ())
        elif column.name not in known:
            known[column.name] = np.full(rank.size, NULL)
    everyone = ",".join(map(str, range(ranks)))
    group = {"group": "0", "description": None, "backend": "nccl", "size": ranks}
    return Measures(
        kernels=schema.KERNELS.rows(),
        copies=schema.COPIES.rows(),
        blocking_calls=schema.BLOCKING_CALLS.rows(),
        synchronisations=schema.SYNCHRONISATIONS.rows(),
        collectives=schema.COLLECTIVES.rows(known),
        ops=schema.OPS.rows(),
        host_operators=schema.HOST_OPERATORS.rows(),
        host_gaps=schema.HOST_GAPS.rows(),
        steps=schema.STEPS.rows(),
        groups=schema.GROUPS.of_dicts(
            [{**group, "rank": one, "ranks": everyone} for one in range(ranks)]
        ),
        probes=schema.PROBES.rows(),
        ranks=schema.RANKS.of_dicts([_rank(one, ranks) for one in range(ranks)]),
    )


def _rank(rank: int, ranks: int) -> dict[str, object]:
    row: dict[str, object] = dict.fromkeys(column.name for column in schema.RANKS.columns)
    host = "b" if rank >= ranks // 2 else "a"
    return {**row, "rank": rank, "file": f"rank{rank}.json", "host": host, "events": 0}


def measure(trace: Measures, rounds: int) -> tuple[float, float, int]:
    """Seconds to match, and to match, find the clocks and the waits; rows left alone."""
    alone, all_s = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        matches = match(trace).matches
        alone.append(time.perf_counter() - start)
        fresh = replace(trace)  # what was measured before is remembered
        start = time.perf_counter()
        matched(fresh)
        all_s.append(time.perf_counter() - start)
    return min(alone), min(all_s), int((matches.ints("present") == 1).sum())


def draw(results: dict[tuple[int, int], float], path: Path) -> None:
    """Seconds against rows, one line per number of ranks."""
    _, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    for ranks in RANKS:
        rows = [ranks * operations / 1000 for operations in OPERATIONS]
        ax.plot(rows, [results[ranks, n] for n in OPERATIONS], "o-", label=f"{ranks} ranks")
    ax.set(xlabel="operations x ranks, thousands", ylabel="seconds to match", xlim=0, ylim=0)
    ax.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(path, dpi=150)


def main() -> None:
    """Measure, print the table and draw it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("out/matching.png"))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'ranks':>6} {'operations':>11} {'match s':>8} {'all s':>7} {'us/row':>7} {'alone':>6}")
    results = {}
    for ranks in RANKS:
        for operations in OPERATIONS:
            trace = generate(ranks, operations)
            match_s, all_s, alone = measure(trace, options.rounds)
            results[ranks, operations] = all_s
            each = all_s / len(trace.collectives) * 1e6
            print(
                f"{ranks:>6} {operations:>11} {match_s:>8.2f} {all_s:>7.2f} {each:>7.2f} {alone:>6}"
            )
    draw(results, options.output)


if __name__ == "__main__":
    main()
