"""``python -m benchmarks.report_weight``: what the page weighs and takes to load, beside others'.

Ours of a small run, of 64 generated ranks and of a real trace (where this machine has it). memray's
flamegraph and scalene's page of the command that makes the small one, and HTA's pictures of the
real trace in one page. ``--tools`` names the folder of memray and scalene; what is missing is said.

Each page is loaded five times in Chromium, from disk: the medians of the processor time of its main
thread, which what else runs does not disturb, and of the time until it had loaded.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from benchmarks.scale.generate import write_job
from tests.browser import Browser, chromium

ROOT = Path(__file__).parent.parent
SMALL = ROOT / "traces" / "straggler" / "gloo-4"
REAL = Path(os.environ.get("COMMTRACE_REAL_TRACES", ROOT.parent / "shared" / "traces"))
REAL /= "hta_v100_allreduce_no_metadata.json.gz"
ROUNDS = 5

HTA = """
import sys, warnings
import plotly.graph_objects as go
warnings.simplefilter("ignore")
shown = []
go.Figure.show = lambda figure, *args, **named: shown.append(figure)
from hta.trace_analysis import TraceAnalysis
hta = TraceAnalysis({0: sys.argv[1]}, "", include_last_profiler_step=True)
hta.get_temporal_breakdown()
hta.get_comm_comp_overlap()
hta.get_gpu_kernel_breakdown()
hta.get_idle_time_breakdown()
pages = [its.to_html(full_html=False, include_plotlyjs=not i) for i, its in enumerate(shown)]
open(sys.argv[2], "w").write(f"<!doctype html><meta charset=utf-8>{''.join(pages)}")
"""


def ours(paths: Path) -> Callable[[Path], None]:
    """Makes the report of a run."""
    return lambda page: _run(sys.executable, "-m", "commtrace", "analyze", paths, "-o", page)


def of_hta(page: Path) -> None:
    """HTA's pictures of the real trace, as it draws them in a notebook."""
    _run(sys.executable, "-c", HTA, REAL, page)


def of_memray(tools: Path) -> Callable[[Path], None]:
    """A flamegraph of the memory of the analysis of the small run."""

    def make(page: Path) -> None:
        command = (
            "-m",
            "commtrace",
            "analyze",
            SMALL,
            "--workers",
            "1",
            "-o",
            page.with_suffix(".md"),
        )
        _run(tools / "memray", "run", "-q", "-o", page.with_suffix(".bin"), *command)
        _run(tools / "memray", "flamegraph", "-o", page, page.with_suffix(".bin"))

    return make


def of_scalene(tools: Path) -> Callable[[Path], None]:
    """A profile of the same: time by line."""

    def make(page: Path) -> None:
        program = page.with_suffix(".py")
        program.write_text("from commtrace.__main__ import main\nmain()\n", "utf-8")
        profile = page.with_suffix(".json")
        arguments = ("analyze", SMALL, "--workers", "1", "-o", page.with_suffix(".md"))
        _run(tools / "scalene", "run", "--cpu-only", "-o", profile, program, "---", *arguments)
        _run(tools / "scalene", "view", "--standalone", profile, cwd=page.parent)
        shutil.move(page.parent / "scalene-profile.html", page)

    return make


def _run(*command: object, cwd: Path = ROOT) -> None:
    told = subprocess.run(
        [*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False
    )
    if told.returncode:
        raise RuntimeError(told.stderr.strip().splitlines()[-1] if told.stderr else command)


def loaded(browser: Browser, page: Path) -> tuple[float, float, int]:
    """Milliseconds of the main thread and until loaded, and requests to elsewhere."""
    shown = browser.page("about:blank#empty")
    shown.send("Performance.enable")
    shown.send("Page.navigate", url=page.as_uri())
    shown.wait_for("location.protocol === 'file:' && performance.timing.loadEventEnd > 0")
    shown.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    metrics = {its["name"]: its["value"] for its in shown.send("Performance.getMetrics")["metrics"]}
    took = shown.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart")
    elsewhere = sum("request" in problem for problem in shown.problems)
    shown.close()
    return 1e3 * metrics["ThreadTime"], took, elsewhere


def pages(scratch: Path, tools: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Each page's name and what makes it."""
    yield "commtrace, 4 ranks recorded", ours(SMALL)
    yield "commtrace, 64 ranks generated", ours(write_job(scratch / "job", 64, 475))
    yield "commtrace, one rank, 216,000 events", ours(REAL)
    yield "HTA, the same trace, its pictures", of_hta
    yield "memray, flamegraph of the first", of_memray(tools)
    yield "scalene, profile of the first", of_scalene(tools)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", type=Path, default=Path(sys.executable).parent)
    parser.add_argument("--keep", type=Path, help="Keep the pages in this folder.")
    options = parser.parse_args()
    program = chromium()
    if program is None:
        sys.exit("needs chromium on PATH")
    with tempfile.TemporaryDirectory() as name:
        scratch = options.keep or Path(name)
        scratch.mkdir(parents=True, exist_ok=True)
        browser = Browser(program, Path(name) / "profile")
        print("| page | MB | main thread, ms | loaded after, ms | requests to elsewhere |")
        print("|---|--:|--:|--:|--:|")
        for title, make in pages(scratch, options.tools):
            page = scratch / f"{title.replace(' ', '-').replace(',', '')}.html"
            try:
                make(page)
            except (OSError, RuntimeError) as error:
                print(f"| {title} | {error} | | | |", flush=True)
                continue
            times = [loaded(browser, page) for _ in range(ROUNDS)]
            thread, took, elsewhere = (median(column) for column in zip(*times, strict=True))
            size = page.stat().st_size / 1e6
            print(f"| {title} | {size:.2f} | {thread:.0f} | {took:.0f} | {elsewhere} |", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
