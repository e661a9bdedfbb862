"""``python -m benchmarks.programs``: the diagnosis against programs as people write them.

Each program is recorded without a fault and with it, in turn in every round, by
``commtrace record`` with its defaults, and analysed by ``commtrace analyze``. Half of the
programs are set aside: no rule is tuned on those.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.programs.report import HEADER, row, totals
from benchmarks.programs.trial import Trial, tried
from benchmarks.programs.truth import PROGRAMS, Program
from benchmarks.programs.verdict import Judged
from benchmarks.recorded.measure import progress

SETS = ("tune", "aside")


def set_of(program: Program) -> str:
    """Programs alternate by name."""
    return SETS[sorted(each.name for each in PROGRAMS).index(program.name) % 2]


def judge(programs: list[Program], rounds: int, folder: Path, timeout_s: float) -> list[Judged]:
    """Record all in every round, each program's faults right behind it: they met one machine."""
    all_judged = []
    for program in programs:
        clean: list[Trial] = []
        all_judged += [Judged(program, fault, clean) for fault in program.faults]
    for number in range(rounds):
        for program in programs:
            mine = [judged for judged in all_judged if judged.program is program]
            trials = {"none": mine[0].clean, **{one.fault.name: one.faulty for one in mine}}
            for fault, kept_trials in trials.items():
                progress(f"round {number + 1} of {rounds}: {program.name}, {fault}")
                out = folder / f"{program.name}-{fault}-{number + 1}"
                kept_trials.append(tried(program, fault, out, timeout_s))
            progress("\n".join(map(row, mine)))
    return all_judged


def show(all_judged: list[Judged]) -> None:
    """A table and the totals of each set, and those of all."""
    for name in SETS:
        mine = [judged for judged in all_judged if set_of(judged.program) == name]
        if mine:
            print(f"### {name}\n\n{HEADER}", *map(row, mine), "", totals(name, mine), "", sep="\n")
    print(totals("all", all_judged))


@contextlib.contextmanager
def kept(folder: Path | None) -> Iterator[Path]:
    """Where the recordings go: there, or somewhere until the end."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="commtrace-programs-") as scratch:
            yield Path(scratch)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder


def main() -> None:
    """Record, analyse, judge, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.programs", description=__doc__)
    parser.add_argument("--programs", default="*", metavar="GLOB", help="those whose name matches")
    parser.add_argument("--set", choices=SETS, help="this half of them only")
    parser.add_argument("--rounds", type=int, default=3, help="recordings of each, in turn")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one recording")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the recordings there")
    options = parser.parse_args()
    chosen = [
        program
        for program in PROGRAMS
        if fnmatch(program.name, options.programs) and options.set in (None, set_of(program))
    ]
    with kept(options.keep) as folder:
        show(judge(chosen, options.rounds, folder, options.timeout))


if __name__ == "__main__":
    main()
