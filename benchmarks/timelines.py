"""``python -m benchmarks.timelines``: what a timeline of 16 ranks costs, beside concatenation.

Each way runs in a process of its own: CPU seconds of it and of its workers, the peak memory of the
largest of these, and the size of the file. TraceFusion is TraceLens's, which is in no package
index: ``--tracelens FOLDER`` is one with a copy of https://github.com/AMD-AGI/TraceLens, of which
``TraceLens/TraceFusion/trace_fuse.py`` and ``TraceLens/util.py`` suffice.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib.util
import json
import sys
import time
from pathlib import Path

from benchmarks.generate import write_run
from benchmarks.used import used

ROOT = Path(__file__).parent.parent
MB_OF_50K_EVENTS = 12.2


def timeline(files: list[Path], target: Path, keep: str) -> None:
    """Ours; what it says of itself is how much of it was writing."""
    from commtrace.run import load
    from commtrace.viewer.timeline import write_timeline

    analysis = load(files).analysis()
    begun = time.process_time()
    write_timeline(analysis, target, keep)
    print(f"{time.process_time() - begun:.1f}")


def concatenation(files: list[Path], target: Path, keep: str) -> None:  # noqa: ARG001 - keeps all
    """All events of all files in one list, each rank's processes renamed: the least one can do."""
    events = []
    for rank, file in enumerate(files):
        for event in json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]:
            events.append({**event, "pid": f"rank {rank} {event.get('pid')}"})
    with gzip.open(target, "wt", compresslevel=1, encoding="utf-8") as out:
        json.dump({"traceEvents": events}, out)


def trace_fusion(files: list[Path], target: Path, keep: str) -> None:
    """TraceLens's: all events, or all but Python's functions."""
    from TraceLens.TraceFusion.trace_fuse import TraceFuse

    fuse = TraceFuse(list(map(str, files)))
    with contextlib.redirect_stdout(sys.stderr):
        fuse.merge_and_save(str(target.with_suffix("")), include_pyfunc=keep == "everything")


WAYS = {
    "commtrace, kernels": ("timeline", "kernels", "run.pftrace.gz"),
    "commtrace, operators": ("timeline", "operators", "run.pftrace.gz"),
    "commtrace, everything": ("timeline", "everything", "run.pftrace.gz"),
    "commtrace, kernels as JSON": ("timeline", "kernels", "run.trace.json.gz"),
    "plain concatenation": ("concatenation", "everything", "run.json.gz"),
    "TraceFusion, operators": ("trace_fusion", "operators", "run.json.gz"),
    "TraceFusion, everything": ("trace_fusion", "everything", "run.json.gz"),
}


def main() -> None:
    """Generate what is missing, measure every way once, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--events", type=int, default=50_000, help="about so many in each rank")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "timelines")
    parser.add_argument("--tracelens", type=Path, help="a folder with a copy of TraceLens")
    parser.add_argument("--way", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    folder = args.out / f"{args.ranks}x{args.events}"
    files = write_run(folder, args.ranks, MB_OF_50K_EVENTS * args.events / 50_000)
    if args.tracelens:
        sys.path.insert(0, str(args.tracelens))
    if args.way:
        name, target = args.way
        function, keep, _ = WAYS[name]
        globals()[function](files, Path(target), keep)
        return
    print("| way | CPU s | of it writing | peak MB | file MB |\n|---|--:|--:|--:|--:|")
    for name, (function, _, ending) in WAYS.items():
        if function == "trace_fusion" and importlib.util.find_spec("TraceLens") is None:
            print(f"| {name} | no copy given: --tracelens | | | |")
            continue
        print(f"| {name} | {_measured(name, folder / ending)} |", flush=True)


def _measured(name: str, target: Path) -> str:
    """One way in a process of its own, whose workers count."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.timelines",
        *sys.argv[1:],
        "--way",
        name,
        str(target),
    ]
    cpu, peak, writing = used(command)
    written = " ".join(writing.split()) or "all"
    size = target.stat().st_size / 1e6
    return f"{cpu:.1f} | {written} | {peak:.0f} | {size:.1f}"


if __name__ == "__main__":
    main()
