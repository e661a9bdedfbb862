"""What reading and analysing is held to, as ratios of what was measured in one run.

Those of many ranks are in ``benchmarks.scale``.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.generate import write_run
from benchmarks.used import used

__all__ = ["Measured", "Target", "of_cases", "of_start", "table"]

ROOT = Path(__file__).parent.parent
SMALL = ROOT / "traces" / "slow_ddp" / "after"
_READS = "import sys; from commtrace.run import load; load(sys.argv[1:], workers=1)"
_LOADS = """
import gzip, json, sys
for name in sys.argv[1:]:
    json.loads(gzip.open(name).read())
"""


@dataclass(frozen=True)
class Target:
    """A ratio and what it should be: at most ``bound``, or at least where ``least``."""

    name: str
    ratio: float
    bound: float
    least: bool = False

    @property
    def is_met(self) -> bool:
        """Whether it is what it should be."""
        return self.ratio >= self.bound if self.least else self.ratio <= self.bound


@dataclass(frozen=True)
class Measured:
    """One input's medians by peer: seconds of work and of the whole process, and peak memory."""

    raw_mb: float
    work_s: Mapping[str, float]
    process_s: Mapping[str, float]
    peak_mb: Mapping[str, float]


def of_cases(cases: Mapping[str, Measured]) -> Iterator[Target]:
    """Those of the inputs that were measured, by their names in ``benchmarks.__main__``."""
    against = {
        "a real trace": {"hta": 10, "tracelens": 3},
        "generated, 100 MB": {"hta": 25, "tracelens": 5},
        "generated, 1 GB": {"hta": 50, "tracelens": 12},
        "generated, 8 × 100 MB": {"hta": 20, "tracelens": 6},
    }
    for name, its in cases.items():
        work, whole = its.work_s, its.process_s
        if "×" not in name:
            scan = work["commtrace_scan"]
            yield Target(
                f"{name}: scan ÷ (decompression + one regex)",
                scan / work["decompress_and_match"],
                2.5,
            )
            yield Target(f"{name}: scan ÷ decompression", scan / work["decompress"], 9)
            yield Target(f"{name}: every event ÷ scan", work["commtrace_every_event"] / scan, 3.5)
        for peer, bound in against.get(name, {}).items():
            if peer in whole:
                ratio = whole[peer] / whole["commtrace_analyze"]
                yield Target(f"{name}: {peer} ÷ analyze, whole processes", ratio, bound, least=True)
        large = its.raw_mb > 500 and "×" not in name
        peak = its.peak_mb["commtrace_analyze"]
        if large:
            yield Target(f"{name}: peak ÷ raw size", peak / its.raw_mb, 0.2)
        else:
            yield Target(f"{name}: peak of a process, MB", peak, 150)


def of_start(scratch: Path, real: Path | None) -> Iterator[Target]:
    """Those of starting, of many small files and of reading again; CPU unless it says so."""
    analyze = ("-m", "commtrace", "analyze", "--no-cache")
    imports = _cpu_s("-c", "import numpy, typer")
    small = _cpu_s(*analyze, str(SMALL))
    yield Target("analyze of a small recording ÷ importing numpy and typer", small / imports, 3)
    load_ms = 1e3 * _cpu_s("-c", "from commtrace.run import load; import commtrace.reader")
    yield Target("importing the load path, ms", load_ms, 100)
    yield Target("--help, ms", 1e3 * _cpu_s("-m", "commtrace", "--help"), 150)
    files = [str(path) for path in write_run(scratch / "256x0.3mb", 256, 0.3)]
    many = _cpu_s(*analyze, *files, rounds=1) / _cpu_s("-c", _LOADS, *files, rounds=1)
    yield Target("analyze of 256 small ranks ÷ plain json.load of their files", many, 4)
    if real is not None:
        with tempfile.TemporaryDirectory() as home:
            start = _cpu_s("-c", _READS, str(SMALL), XDG_CACHE_HOME=home)
            first = _cpu_s("-c", _READS, str(real), rounds=1, XDG_CACHE_HOME=home)
            again = _cpu_s("-c", _READS, str(real), XDG_CACHE_HOME=home)
        ratio = max(again - start, 0) / (first - start)
        yield Target("reading a real trace again ÷ first, without the start", ratio, 0.1)


def table(targets: Iterator[Target]) -> str:
    """As Markdown."""
    lines = ["| | measured | target | |", "|---|--:|--:|---|"]
    for its in targets:
        bound = f"{'≥' if its.least else '≤'} {its.bound:g}"
        lines.append(
            f"| {its.name} | {its.ratio:.3g} | {bound} | {'' if its.is_met else 'missed'} |"
        )
    return "\n".join(lines)


def _cpu_s(*arguments: str, rounds: int = 5, **environment: str) -> float:
    """What a run of Python takes of the processor, its children included: the median."""
    own = {"PYTHONDONTWRITEBYTECODE": "", **environment}
    return median(used([sys.executable, *arguments], own).cpu_s for _ in range(rounds))
