"""``python -m benchmarks``: build the set, measure everybody in turn, print tables and targets.

Every peer runs in a process of its own, all of them in turn in each round, so that a
machine that grows slower slows everybody. The median counts; the spread is beside it.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from benchmarks.generate import write_run
from benchmarks.peers import PEERS
from benchmarks.targets import Measured, of_cases, of_start
from benchmarks.targets import table as of_targets
from benchmarks.used import used
from tests.perfetto.trace_processor import lacks

ROOT = Path(__file__).parent.parent
NEEDS = {"hta": "hta", "tracelens": "TraceLens", "orjson_pandas": "orjson"}


@dataclass
class Case:
    """One input and what each peer took for it."""

    name: str
    paths: list[Path]
    without: frozenset[str] = frozenset()
    work_s: dict[str, list[float]] = field(default_factory=dict)
    process_s: dict[str, list[float]] = field(default_factory=dict)
    peak_mb: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def measure(self, peer: str, timeout_s: float) -> None:
        """Run one peer once in a process of its own."""
        command = [sys.executable, "-m", "benchmarks.peers", peer, *map(str, self.paths)]
        start = time.perf_counter()
        with subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            try:
                out, err = child.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                child.kill()
                self.failed[peer] = f"more than {timeout_s:.0f} s"
                return
        took = time.perf_counter() - start
        if child.returncode:
            self.failed[peer] = (err.strip().splitlines() or ["died"])[-1][:100]
            return
        self.work_s.setdefault(peer, []).append(float(out.strip().splitlines()[-1]))
        self.process_s.setdefault(peer, []).append(took)

    @property
    def measured(self) -> Measured:
        """The medians."""
        work, whole = (
            {peer: statistics.median(took) for peer, took in times.items()}
            for times in (self.work_s, self.process_s)
        )
        return Measured(json_bytes(self.paths) / 1e6, work, whole, self.peak_mb)

    def weigh(self, peer: str) -> None:
        """The peak memory of its largest process, as the operating system counts it."""
        command = [sys.executable, "-m", "benchmarks.peers", peer, *map(str, self.paths)]
        self.peak_mb[peer] = used(command).peak_mb


def json_bytes(paths: list[Path]) -> int:
    """Size of the JSON, decompressed."""
    from isal import igzip

    total = 0
    for path in paths:
        with igzip.open(path, "rb") as stream:
            while block := stream.read(1 << 20):
                total += len(block)
    return total


def table(case: Case) -> str:
    """One case as Markdown."""
    size = json_bytes(case.paths) / 1e6
    lines = [
        f"### {case.name}: {len(case.paths)} file(s), {size:,.0f} MB of JSON",
        "",
        "| | work, s (min–max) | MB/s | × decompress | whole process, s | × analyze | peak MB |",
        "|---|---|---|---|---|---|---|",
    ]
    floor = statistics.median(case.work_s["decompress"])
    ours = statistics.median(case.process_s["commtrace_analyze"])
    for peer in PEERS:
        if peer in case.failed:
            lines.append(f"| {peer} | {case.failed[peer]} | | | | | |")
        elif peer in case.work_s:
            work = statistics.median(case.work_s[peer])
            whole = statistics.median(case.process_s[peer])
            low, high = min(case.work_s[peer]), max(case.work_s[peer])
            lines.append(
                f"| {peer} | {work:.3f} ({low:.3f}–{high:.3f}) | {size / work:,.0f} "
                f"| {work / floor:.1f} | {whole:.2f} | {whole / ours:.1f} "
                f"| {case.peak_mb[peer]:,.0f} |"
            )
    return "\n".join(lines)


def real_trace() -> Path | None:
    """The largest that this machine has."""
    real = Path(os.environ.get("COMMTRACE_REAL_TRACES", ROOT.parent / "shared" / "traces"))
    return max(real.glob("*.json.gz"), key=lambda path: path.stat().st_size, default=None)


def cases(scratch: Path, quick: bool) -> list[Case]:
    """The inputs: real traces where present, generated ones always."""
    found: list[Case] = []
    if real := real_trace():
        found.append(Case("a real trace", [real]))
    found.append(Case("generated, 100 MB", write_run(scratch / "100mb", 1, 100)))
    if not quick:
        slow = frozenset({"json_pandas", "orjson_pandas", "trace_processor"})
        found.append(Case("generated, 1 GB", write_run(scratch / "1gb", 1, 1000), slow))
        found.append(Case("generated, 8 × 100 MB", write_run(scratch / "8x100mb", 8, 100), slow))
    return found


def main() -> None:
    """Measure and print; ``--quick`` leaves the large ones out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="only the inputs up to 100 MB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=ROOT / "out" / "benchmarks")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for one run")
    parser.add_argument("--tracelens", type=Path, help="a folder with a copy of TraceLens")
    options = parser.parse_args()
    if options.tracelens:
        sys.path.insert(0, str(options.tracelens))
        os.environ["PYTHONPATH"] = str(options.tracelens)
    compileall.compile_dir(ROOT / "commtrace", quiet=1)  # as pip does for the peers
    present = [p for p in PEERS if importlib.util.find_spec(NEEDS.get(p, "commtrace"))]
    if missing := lacks():
        print(f"trace_processor needs {missing}\n")
        present.remove("trace_processor")
    found = cases(options.scratch, options.quick)
    for case in found:
        peers = [peer for peer in present if peer not in case.without]
        for _ in range(options.rounds):
            for peer in peers:
                if peer not in case.failed:
                    case.measure(peer, options.timeout)
        for peer in set(peers) - set(case.failed):
            case.weigh(peer)
        print(table(case), flush=True)
        print(flush=True)
    measured = of_cases({case.name: case.measured for case in found})
    print(of_targets(chain(measured, of_start(options.scratch, real_trace()))))


if __name__ == "__main__":
    main()
