"""``python -m benchmarks.scale``: CPU per stage and memory, against ranks and operations.

Each size is analysed in a process of its own; the files are generated once and kept. CPU is that
of the process and of those it started. Beyond its start is the parent's most memory, and what of it
is kept, in bytes for each operation and rank, when all is done.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scale.generate import STRAGGLER, slow_pairs, write_job
from benchmarks.scale.plot import drawn, parsed

ROOT = Path(__file__).parents[2]
_SIZES = (64, 256, 1024)
_STAGES = ("read", "match", "rules", "diagnosis", "text", "json")
_COLUMNS = (
    *("ranks", "rows", *(f"{stage}, s CPU" for stage in _STAGES), "costliest rules, s"),
    *("parent, MB", "beyond its start, bytes per row", "kept"),
    *("worker, MB", "named"),
)
_COSTLIEST = 3  # rules that are named


def cpu_s() -> float:
    """Of this process and of those that it started and that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(its.ru_utime + its.ru_stime for its in used)


def peak_mb(who: int) -> float:
    """The most memory of this process, or of the largest that it started."""
    return resource.getrusage(who).ru_maxrss * 1024 / 1e6


def now_mb() -> float:
    """The memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def analysed(folder: Path) -> dict[str, Any]:
    """What each stage of an analysis takes."""
    from commtrace import rules
    from commtrace.heap import give_back
    from commtrace.metrics.run.waits import matched
    from commtrace.reports.formats import json as json_report
    from commtrace.reports.formats import text
    from commtrace.run import load

    took: dict[str, float] = {}

    def stage(name: str, work: Callable[[], Any]) -> Any:
        before = cpu_s()
        made = work()
        took[name] = cpu_s() - before
        return made

    began, at_start = time.monotonic(), peak_mb(resource.RUSAGE_SELF)
    run = stage("read", lambda: load(folder, cache=False))
    workers = peak_mb(resource.RUSAGE_CHILDREN)
    stage("match", lambda: matched(run.measures))
    at: list[float] = []
    stage("rules", lambda: run.diagnose(progress=lambda *_: at.append(cpu_s())))
    # Each is asked between two of these, the first time all are.
    each = dict(zip(sorted(rules.RULES), np.diff(at).tolist(), strict=False))
    analysis = stage("diagnosis", run.analysis)
    stage("text", lambda: text.render(analysis))
    stage("json", lambda: json_report.render(analysis))
    give_back()
    kept = now_mb()
    ranks = len(run.measures.rows("ranks"))
    wanted = {
        "straggler": (STRAGGLER,),
        "slow-link": tuple(sorted({rank for pair in slow_pairs(ranks) for rank in pair})),
    }
    findings = analysis.verdict.diagnosis.findings
    return {
        "operations": len(run.measures.rows("collectives")),
        "took": took,
        "rules": dict(sorted(each.items(), key=lambda rule: -rule[1])),
        "wall_s": time.monotonic() - began,
        "parent_mb": peak_mb(resource.RUSAGE_SELF),
        "kept_mb": kept,
        "start_mb": at_start,
        "worker_mb": workers,
        "named": [f.rule for f in findings if f.ranks == wanted.get(f.rule)],
    }


def row(ranks: int, its: dict[str, Any]) -> str:
    """One size as a row of the table."""
    took = its["took"]
    costliest = ", ".join(f"{n} {s:.1f}" for n, s in list(its["rules"].items())[:_COSTLIEST])
    beyond, kept = (
        (its[which] - its["start_mb"]) * 1e6 / its["operations"]
        for which in ("parent_mb", "kept_mb")
    )
    cells = [
        f"{ranks:,}",
        f"{its['operations']:,}",
        *(
            f"{took[stage]:.1f}"
            for stage in ("read", "match", "rules", "diagnosis", "text", "json")
        ),
        costliest,
        f"{its['parent_mb']:,.0f}",
        f"{beyond:,.0f}",
        f"{kept:,.0f}",
        f"{its['worker_mb']:,.0f}",
        ", ".join(its["named"]) or "none",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Generate, analyse, print a row for each size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=_SIZES)
    parser.add_argument("--operations", type=int, default=500, help="of each rank")
    parser.add_argument("--scratch", type=Path, default=ROOT / "out" / "scale")
    parser.add_argument("--plot", type=Path, help="write the table as a picture, too: .svg, .png")
    parser.add_argument("--table", type=Path, help="plot what was printed before, measure nothing")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table and not options.plot:
        parser.error("--table: name the picture with --plot FILE.svg")
    if options.one:
        print(json.dumps(analysed(options.one)))
        return
    if options.table:
        drawn(parsed(options.table.read_text()), options.plot)
        return
    table = [f"| {' | '.join(_COLUMNS)} |", "|" + "--|" * len(_COLUMNS)]
    print("\n".join(table))
    for ranks in options.ranks:
        folder = write_job(
            options.scratch / f"{ranks}x{options.operations}", ranks, options.operations
        )
        command = [sys.executable, "-m", "benchmarks.scale", "--one", str(folder)]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        table.append(row(ranks, json.loads(done.stdout)))
        print(table[-1], flush=True)
    if options.plot:
        drawn(parsed("\n".join(table)), options.plot)


if __name__ == "__main__":
    main()
