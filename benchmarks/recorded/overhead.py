"""What recording adds to a step: plain, under torch.profiler alone, and by ``record``.

With all that every recording carries: its labels, and the look at the machine. By ``record
WORKLOAD``, and by ``record -- PROGRAM``, where the program is the plain one.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from benchmarks.recorded.measure import WORKLOADS, progress
from benchmarks.recorded.workloads import timed
from commtrace.record import Plan, record, record_program

__all__ = ["overhead"]

ROOT = Path(__file__).parents[2]
WAYS = ("plain", "profiler", "record", "record --")
WORLD_SIZE = 2

Times = dict[str, list[float]]


# torch.profiler's events are small and stay; they break up what tensors leave behind, so that
# the next ones take new memory: 16,000 page faults a step more, or none, by chance. With each
# tensor mapped alone, whoever profiles pays the same.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072"}


def overhead(rounds: int) -> None:
    """Run the same training each way in every round, and print the table."""
    os.environ.update(ALLOCATOR)
    before = os.getloadavg()
    seen: dict[str, list[Times]] = {way: [] for way in WAYS}
    for number in range(rounds):
        turn = number % len(WAYS)
        for way in WAYS[turn:] + WAYS[:turn]:
            progress(f"round {number + 1} of {rounds}: {way}")
            seen[way].append(_recorded(way) if way.startswith("record") else _unrecorded(way))
    print(
        "| step of ddp_training | ms: median (min–max of the runs) | more than plain "
        "| more than the profiler alone |"
    )
    print("|---|---|---|---|")
    for clock, name in (("walls", "wall"), ("processors", "processor time")):
        for way in WAYS:
            each = [statistics.median(one[clock]) for one in seen[way]]
            cells = [
                f"{way}, {name}",
                f"{statistics.median(each):.2f} ({min(each):.2f}–{max(each):.2f})",
                *(
                    ""
                    if WAYS.index(way) <= WAYS.index(other)
                    else _more(seen[way], seen[other], clock)
                    for other in WAYS[:2]
                ),
            ]
            print(f"| {' | '.join(cells)} |")
    print(
        f"\n{rounds} runs of each, {WORLD_SIZE} ranks, {timed.ITERATIONS} steps, "
        f"on {os.cpu_count()} cores, with {' '.join(map('='.join, ALLOCATOR.items()))}; "
        f"load average {before[0]:.1f} before, {os.getloadavg()[1]:.1f} over the last five minutes."
    )


def _more(runs: list[Times], others: list[Times], clock: str) -> str:
    """How much longer a step takes, in percent: median of the rounds, and their range."""
    pairs = zip(runs, others, strict=True)
    more = [100 * (statistics.median(a[clock]) / statistics.median(b[clock]) - 1) for a, b in pairs]
    spread = f" ({min(more):+.1f} to {max(more):+.1f})"
    return f"{statistics.median(more):+.1f} %{spread}"


def _recorded(way: str) -> Times:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "recording")
        if way == "record":
            record(str(WORKLOADS / "timed.py"), world_size=WORLD_SIZE, backend="gloo", out=out)
        else:
            record_program(
                ["-m", "benchmarks.recorded.unrecorded", "plain"],
                plan=Plan(first=timed.WARMUP + 1, steps=timed.ITERATIONS),
                world_size=WORLD_SIZE,
                out=out,
            )
        return _times((out / f"rank{WORLD_SIZE - 1}.log").read_text("utf-8"))


def _unrecorded(way: str) -> Times:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(WORLD_SIZE), "-m", "benchmarks.recorded.unrecorded", way]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return _times(done.stdout)


def _times(log: str) -> Times:
    """Each step's time in ms, by either clock; the first steps are warm-up."""
    began = {
        words[0]: [int(word) / 1e6 for word in words[1:]]
        for words in (line.split() for line in log.splitlines())
        if words and words[0] in ("walls", "processors")
    }
    return {
        clock: [b - a for a, b in pairwise(times)][1 - timed.ITERATIONS :]
        for clock, times in began.items()
    }
