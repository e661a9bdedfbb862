"""``python -m benchmarks.compare``: how often comparisons are right.

Programs as people write them are recorded with and without a fault, in turn in every round, as
``python -m benchmarks.programs`` does. Clean recordings of different rounds are compared with
each other (A/A), and those with a fault with those without (A/B). The same over generated runs,
where the noise is chosen and the cost of the change is known.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path

from benchmarks.compare.generated import NOISE, generated
from benchmarks.compare.pairs import Kept, of_folder
from benchmarks.compare.programs import Judged, alarms, faults, rounds
from benchmarks.programs.__main__ import folders, record
from benchmarks.programs.__main__ import kept as kept_folder
from benchmarks.programs.program import Program
from benchmarks.programs.truth import PROGRAMS
from benchmarks.recorded.measure import progress

GATE = 3.0  # percent
LEAST = 0.05  # of the step: smaller changes need not be found
REST = 0.1  # of the change


def read(paths: list[Path], workers: int) -> dict[Path, Kept]:
    """What comparisons need of the recordings that have steps."""
    found: dict[Path, Kept] = {}
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for number, (path, its) in enumerate(zip(paths, pool.map(of_folder, paths), strict=True)):
            progress(f"read {number + 1} of {len(paths)}: {path.name}")
            if its.recording.steps and its.recording.sample.lacking is None:
                found[path] = its
    return found


def without_change(judged: list[Judged]) -> str:
    """How many would fail the gate, and whose interval holds nothing."""
    failed = [its.name for its in judged if its.answer.low_pct > GATE]
    held = sum(_holds(its, 0.0) for its in judged)
    rows = sum(its.answer.first is not None for its in judged)
    return (
        f"{len(judged)} without a change: {len(failed)} fail a gate of {GATE:g} %; "
        f"{held} intervals hold 0; {rows} name a part beyond chance{': ' if failed else ''}"
        f"{', '.join(failed)}"
    )


def with_change(judged: list[Judged]) -> str:
    """How many are found, on whom, and whose interval holds what is true."""
    known = [its for its in judged if its.truth.step_ns is not None and not its.truth.once]
    held = [
        its for its in known if its.answer.step.low <= its.truth.step_ns <= its.answer.step.high
    ]  # type: ignore[operator]
    large = [its for its in judged if its.truth.once or _is_large(its)]
    right = [its for its in large if its.answer.names(its.truth)]
    wrong = [its.name for its in judged if its.answer.misleads(its.truth)]
    beyond = [its for its in large if its.answer.step.low > 0]
    whole = [its for its in large if its.answer.same_operations and not its.truth.once]
    small = [its for its in whole if abs(its.answer.rest_ns) <= REST * abs(its.answer.step.change)]
    missed = [its.name for its in large if not its.answer.names(its.truth)]
    shares = f"{len(right)} of {len(large)} ({100 * len(right) / max(len(large), 1):.0f} %)"
    return "\n".join(
        (
            f"{len(judged)} with a change; of those of {100 * LEAST:g} % of the step or more:",
            f"{shares} found on the right operation or rank",
            f"{len(wrong)} found on a wrong one",
            f"{len(beyond)} have a step that is longer beyond chance",
            f"{len(held)} of {len(known)} intervals hold a step's change that is known",
            f"{len(small)} of {len(whole)} waterfalls leave a rest of at most {100 * REST:g} %",
            *(f"missed: {name}" for name in missed),
            *(f"wrong: {name}" for name in wrong),
        )
    )


def _holds(its: Judged, change_ns: float) -> bool:
    return its.answer.step.low <= change_ns <= its.answer.step.high


def _is_large(its: Judged) -> bool:
    """By what was injected; if that is unknown, by what was measured in every recording."""
    change = its.truth.step_ns
    return (its.answer.step.change if change is None else change) >= LEAST * its.answer.base_ns


def of_programs(chosen: list[Program], folder: Path, count: int, workers: int) -> None:
    """All pairs of what is there."""
    paths = [
        path
        for program in chosen
        for outs in folders(program, count, folder).values()
        for path in outs
        if (path / "manifest.json").exists()
    ]
    its = read(paths, workers)
    print(f"## Recorded, one a side\n\n{without_change(alarms(chosen, its, folder, count))}\n")
    single = list(faults(chosen, its, folder, count))
    unseen = _unseen(single)
    for name in sorted(unseen):
        print(f"not judged, since some round shows no cost of it: {name}")
    print(f"{with_change([its for its in single if _fault(its.name) not in unseen])}\n")
    together = list(rounds(chosen, its, folder, count))
    together = [its for its in together if _fault(its.name) not in unseen]
    print(f"## Recorded, {count} a side\n\n{with_change(together)}\n")


def _unseen(judged: list[Judged]) -> set[str]:
    """Faults of unknown cost that some round shows no cost of."""
    unknown = [its for its in judged if its.truth.step_ns is None]
    return {_fault(its.name) for its in unknown if not _is_large(its)}


def _fault(name: str) -> str:
    return name.rstrip("0123456789").rstrip("-")


def of_generated(seeds: int) -> None:
    """By noise and number of recordings."""
    found: dict[tuple[float, str], list[Judged]] = {}
    for noise, its in generated(range(seeds)):
        found.setdefault((noise, its.name), []).append(its)
        progress(f"noise {100 * noise:g} %: {its.name}")
    print("## Generated\n")
    print("| noise | change | pairs | fail the gate | interval holds the truth | right |")
    print("|--:|---|--:|--:|--:|--:|")
    for noise in NOISE:
        for name in dict.fromkeys(name for _, name in found):
            print(_row(f"{100 * noise:g} %", name, found[noise, name]))
    for count in ("1 a side", "3 a side"):
        for kind, nothing in (("nothing", True), ("all others", False)):
            its = [
                one
                for (_, name), some in found.items()
                if name.endswith(count) and name.startswith("nothing") == nothing
                for one in some
            ]
            print(_row("all", f"{kind}, {count}", its))


def _row(noise: str, name: str, its: list[Judged]) -> str:
    failed = sum(one.answer.low_pct > GATE for one in its)
    held = sum(_holds(one, one.truth.step_ns or 0.0) for one in its)
    right = sum(one.answer.names(one.truth) for one in its)
    shown = "–" if name.startswith("nothing") else str(right)
    return f"| {noise} | {name} | {len(its)} | {failed} | {held} | {shown} |"


def main() -> None:
    """Record what is lacking, compare, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--programs", default="*", metavar="GLOB", help="those whose name matches")
    parser.add_argument("--rounds", type=int, default=3, help="recordings of each, in turn")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one recording")
    parser.add_argument("--seeds", type=int, default=3, help="generated jobs; 0 for none")
    parser.add_argument("--workers", type=int, default=2, help="processes that read recordings")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep the recordings; those it has are judged"
    )
    parser.add_argument(
        "--no-record", action="store_true", help="judge only what --keep has, record nothing"
    )
    options = parser.parse_args()
    chosen = [
        program
        for program in PROGRAMS
        if fnmatch(program.name, options.programs) and program.hosts == 1
    ]
    if chosen:
        with kept_folder(options.keep) as folder:
            if not options.no_record:
                where = {its: folders(its, options.rounds, folder) for its in chosen}
                record(where, options.rounds, options.timeout)
            of_programs(chosen, folder, options.rounds, options.workers)
    if options.seeds:
        of_generated(options.seeds)


if __name__ == "__main__":
    main()
