"""``python -m benchmarks.on_gpu``: programs on real GPUs, each with its faults and without.

Each is recorded as a user records it, and what is found first is printed beside what its writer
says is wrong: whether that is the same a reader judges. What a fault costs is told by the
program's own clock, over its last 30 steps, which nobody records. By default a GPU for each rank
is needed. Where there is but one, its ranks share it with NCCL 2.30 or later: set
NCCL_MULTI_RANK_GPU_ENABLE=1 and NCCL_MAX_CTAS=1, start ``nvidia-cuda-mps-control -d``, and
give each rank its part (CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=45 for two, 22 for four).
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

import commtrace as ct
from commtrace.diagnosis import Finding
from commtrace.errors import RecordError
from commtrace.record import record_program

__all__ = ["Case", "cases", "row", "step_ms"]

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
_STEP_MS = re.compile(r'"step_ms": ([\d.]+)')
_COLUMNS = ("program", "fault", "ranks", "costs, ms per step", "what is wrong", "first finding")


@dataclass(frozen=True)
class Case:
    """A program with one fault, or with none, and what its writer says of it."""

    program: str
    world: int
    fault: str | None
    ranks: tuple[int, ...]
    what: str
    where: str
    advice: str

    @property
    def name(self) -> str:
        """For its folder."""
        return f"{Path(self.program).stem}.{self.fault or 'clean'}"

    @property
    def command(self) -> list[str]:
        """What is recorded."""
        return [str(SCRIPTS / self.program), *(("--fault", self.fault) if self.fault else ())]


def cases() -> list[Case]:
    """All of them, each program's clean form first."""
    every = json.loads((HERE / "truth.json").read_text("utf-8"))
    return [Case(**{**its, "ranks": tuple(its["ranks"])}) for its in every]


def step_ms(log: str) -> float | None:
    """How long a step took by the program's own clock; None if it did not say."""
    found = _STEP_MS.findall(log)
    return float(found[-1]) if found else None


def row(case: Case, took: dict[str, float | None], first: Finding | None) -> str:
    """A line of the table; ``took`` are the steps of each case's name, in ms."""
    mine, clean = took.get(case.name), took.get(f"{Path(case.program).stem}.clean")
    cost = "–" if mine is None or clean is None or not case.fault else f"{mine - clean:.1f}"
    found = f"{first.rule}: {first.summary}" if first else "none"
    ranks = ", ".join(map(str, case.ranks)) or "all alike"
    cells = (Path(case.program).stem, case.fault or "–", ranks, cost, case.what, found)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _judged(which: list[Case], keep: Path) -> Iterator[str]:
    """The lines of the table, as they become known."""
    took: dict[str, float | None] = {}
    for case in which:
        out = keep / case.name
        try:
            record_program(case.command, world_size=case.world, out=out)
        except RecordError as error:
            yield f"| {Path(case.program).stem} | {case.fault or '–'} | – | – | – | {error} |"
            continue
        took[case.name] = step_ms((out / "rank0.log").read_text("utf-8", errors="replace"))
        found = ct.load(out).diagnose().findings
        yield row(case, took, found[0] if found else None)


def main() -> None:
    """Record and judge the programs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.on_gpu", description=__doc__)
    parser.add_argument("--only", metavar="GLOB", default="*", help="cases of these names")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="keep the recordings, DIR/NAME")
    asked = parser.parse_args()
    which = [case for case in cases() if fnmatch(case.name, asked.only)]
    with TemporaryDirectory() as scratch:
        print(f"| {' | '.join(_COLUMNS)} |", f"|{'---|' * len(_COLUMNS)}", sep="\n")
        for line in _judged(which, asked.keep or Path(scratch)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
