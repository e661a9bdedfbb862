"""``python -m benchmarks.programs``: the diagnosis against programs as people write them.

Each program is recorded without a fault and with it, in turn in every round, by
``commtrace record`` with its defaults; then all recordings are analysed. Half of the
programs are set aside: no rule is tuned on those.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import tempfile
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.namespaces import lacking
from benchmarks.programs.program import Program
from benchmarks.programs.recordings import is_complete, recorded
from benchmarks.programs.report import kinds, table, totals
from benchmarks.programs.trial import Ask, Trial, each, whole
from benchmarks.programs.truth import PROGRAMS
from benchmarks.programs.verdict import Judged
from benchmarks.programs.windows import STEPS, windows
from benchmarks.recorded.measure import progress

SETS = ("tune", "aside")

Folders = Mapping[Program, Mapping[str, list[Path]]]
"""Where the recordings of a program with each of its faults are."""


def set_of(program: Program) -> str:
    """Programs alternate by name, those of a later lot behind the others."""
    return SETS[PROGRAMS.index(program) % 2]


def drawn(programs: list[Program], count: int, seed: int) -> list[Program]:
    """So many of those that need no network of hosts, in their order."""
    on_one_host = [program for program in programs if program.hosts == 1]
    return sorted(random.Random(seed).sample(on_one_host, count), key=PROGRAMS.index)


def folders(program: Program, rounds: int, folder: Path) -> dict[str, list[Path]]:
    """Where its recordings go: for each fault, one for each round."""
    return {
        fault: [folder / f"{program.name}-{fault}-{number}" for number in range(1, rounds + 1)]
        for fault in program.runs
    }


def possible(program: Program, its: Mapping[str, list[Path]]) -> bool:
    """Whether all of its recordings are there, or can be made; if not, it is said why."""
    why = lacking() if program.hosts > 1 else ""
    if why and not all(is_complete(program, out) for outs in its.values() for out in outs):
        progress(f"skipped {program.name}: {why}")
        return False
    return True


def record(where: Folders, rounds: int, timeout_s: float) -> dict[Path, str]:
    """Record what is lacking, each program's faults right behind it; why some failed."""
    failed = {}
    for number in range(rounds):
        for program, its in where.items():
            for fault, outs in its.items():
                if not is_complete(program, outs[number]):
                    progress(f"round {number + 1} of {rounds}: {program.name}, {fault}")
                    if why := recorded(program, fault, outs[number], timeout_s):
                        failed[outs[number]] = why
    return failed


def judge(where: Folders, failed: Mapping[Path, str], ask: Ask) -> list[Judged]:
    """Each program with each of its faults; all faults of one share what is clean."""
    there = [out for its in where.values() for outs in its.values() for out in outs]
    trials = each(ask, [out for out in there if out not in failed])
    trials |= {out: [Trial(failed=why)] for out, why in failed.items()}
    all_judged = []
    for program, its in where.items():
        mine = {
            fault: [trial for out in outs for trial in trials[out]] for fault, outs in its.items()
        }
        all_judged += [
            Judged(program, fault, mine["none"], mine[fault.name]) for fault in program.faults
        ]
    return all_judged


def show(all_judged: list[Judged], what: str) -> None:
    """A table and the totals of each set, and those of all."""
    for name in SETS:
        mine = [judged for judged in all_judged if set_of(judged.program) == name]
        if mine:
            print(f"### {name}\n\n{table(mine)}\n\n{totals(name, mine, what)}\n")
    print(f"{kinds(all_judged)}\n\n{totals('all', all_judged, what)}")


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
    parser.add_argument(
        "--sample", type=int, metavar="N", help="N of them, drawn by chance, of those on one host"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--rounds", type=int, default=3, help="recordings of each, in turn")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one recording")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="keep the recordings; those it has are judged again",
    )
    parser.add_argument(
        "--windows", action="store_true", help=f"judge every {STEPS} consecutive steps, too"
    )
    options = parser.parse_args()
    chosen = [
        program
        for program in PROGRAMS
        if fnmatch(program.name, options.programs) and options.set in (None, set_of(program))
    ]
    if options.sample:
        chosen = drawn(chosen, options.sample, options.seed)
    with kept(options.keep) as folder:
        named = {program: folders(program, options.rounds, folder) for program in chosen}
        where = {program: its for program, its in named.items() if possible(program, its)}
        failed = record(where, options.rounds, options.timeout)
        show(judge(where, failed, whole), "recordings")
        if options.windows:
            print(f"\n## Every {STEPS} consecutive steps\n")
            show(judge(where, failed, windows), "windows")


if __name__ == "__main__":
    main()
