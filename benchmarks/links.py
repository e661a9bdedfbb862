"""``python -m benchmarks.links FOLDER``: what-ifs of a link against the program recorded without.

FOLDER is what ``python -m benchmarks.programs --programs gossip_hosts --keep FOLDER`` filled: of
each round a recording with one slow link and one without. Replayed is the slow one, with its link
as fast as its messages were in the clean one (waiting for a core counts), and as fast as the cable.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

import commtrace
from benchmarks.programs.program import Fault, Program
from benchmarks.programs.truth import PROGRAMS
from commtrace.metrics.run.pair_traffic import pair_traffic

CABLE_GB_S = 1.0
_COLUMNS = (
    *("program", "round", "slow, ms", "clean, ms", "saved, ms"),
    *("promised at the clean rate, ms", "error", f"promised at {CABLE_GB_S:g} GB/s, ms", "error"),
)


def rows(folder: Path) -> Iterator[str]:
    """A line for each round of each program with a slow link that is in the folder."""
    for program in PROGRAMS:
        for fault in program.faults:
            for number in range(1, 100) if fault.link_mbit else ():
                slow, clean = (
                    folder / f"{program.name}-{name}-{number}" for name in (fault.name, "none")
                )
                if slow.is_dir() and clean.is_dir():
                    yield _row(program, fault, number, slow, clean)


def _row(program: Program, fault: Fault, number: int, slow: Path, clean: Path) -> str:
    run, without = commtrace.load(slow), commtrace.load(clean)
    source, target = fault.ranks
    traffic = pair_traffic(without.measures).dicts()
    speed = {(row["source"], row["destination"]): row["gb_s"] for row in traffic}
    before, after = step_ms(run), step_ms(without)
    cells = [
        program.name,
        str(number),
        f"{before:.1f}",
        f"{after:.1f}",
        f"{before - after:.1f}",
    ]
    for gb_s in (speed[source, target], CABLE_GB_S):
        promised = before - step_ms(run, f"link={source}-{target}:{gb_s:.6f}GB/s")
        cells += [f"{promised:.1f}", error(promised, before - after)]
    return f"| {' | '.join(cells)} |"


def step_ms(run: commtrace.Run, *edits: str) -> float:
    """A median step as measured, or with an edit."""
    steps = run.replay(*edits)
    its = steps[steps["edit"].isin(edits)] if edits else steps
    return statistics.median((its["duration_ns"] / 1e6).tolist())


def error(promised: float, saved: float) -> str:
    """A promise by what was had, less 1; none where the clean recording was no faster.

    >>> error(30, 20), error(30, -5)
    ('+50%', 'the clean one is no faster')
    """
    return f"{promised / saved - 1:+.0%}" if saved > 0 else "the clean one is no faster"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.links", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    print(f"| {' | '.join(_COLUMNS)} |")
    print("|" + "--|" * len(_COLUMNS))
    for line in rows(folder):
        print(line, flush=True)


if __name__ == "__main__":
    main()
