"""``python -m benchmarks.gpu_jobs``: the diagnosis of simulated jobs on GPUs, against the truth.

Each job is simulated with its fault and without; the difference is what the fault costs. The
faulty run is written as torch.profiler writes it, read, and diagnosed with all defaults.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.gpu_jobs import kineto
from benchmarks.gpu_jobs.copies_and_hosts import COPIES_AND_HOSTS
from benchmarks.gpu_jobs.data_parallel import DATA_PARALLEL
from benchmarks.gpu_jobs.experts_and_rings import EXPERTS_AND_RINGS
from benchmarks.gpu_jobs.job import Job
from benchmarks.gpu_jobs.pipelines import PIPELINES
from benchmarks.gpu_jobs.report import Judged, table, totals
from benchmarks.gpu_jobs.sharded import SHARDED
from benchmarks.recorded.measure import progress
from commtrace.diagnosis import Finding
from commtrace.rules import RULES
from commtrace.run import Run, load

JOBS = (*DATA_PARALLEL, *COPIES_AND_HOSTS, *SHARDED, *PIPELINES, *EXPERTS_AND_RINGS)


def judge(job: Job, folder: Path) -> Judged:
    """Simulate a job, write the faulty run's traces to a folder, and ask what is wrong."""
    faulty = job.simulate(True)
    kineto.write(faulty, folder, job.lost)
    healthy_ms = job.simulate(False).step_ms if job.wrong else faulty.step_ms
    ranks, steps = len(faulty.ranks), len(faulty.ranks[0].steps)
    first = first_finding(load(folder, workers=1, cache=False))
    return Judged(job, ranks, steps, faulty.step_ms, healthy_ms, first)


def first_finding(run: Run) -> Finding | None:
    """What a user is told first: no symptom of another, and no good news."""
    causes = (
        finding
        for finding in run.diagnose().findings
        if not finding.explained_by and not RULES[finding.rule].good_news
    )
    return next(causes, None)


def main() -> None:
    """Simulate, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="GLOB", default="*", help="jobs of these names")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep the traces, in DIR/NAME")
    asked = parser.parse_args()
    all_judged = []
    with contextlib.ExitStack() as stack:
        folder = asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for job in JOBS:
            if fnmatch(job.name, asked.only):
                progress(job.name)
                shutil.rmtree(folder / job.name, ignore_errors=True)
                all_judged.append(judge(job, folder / job.name))
    print(table(all_judged), totals(all_judged), sep="\n\n")


if __name__ == "__main__":
    main()
