"""``python -m benchmarks.recorded``: the diagnosis against faults that really happened.

Every table is printed as markdown, with the number of recordings and their spread.
"""

from __future__ import annotations

import argparse

from benchmarks.recorded.cases import CASES
from benchmarks.recorded.delays import delays
from benchmarks.recorded.gains import judge
from benchmarks.recorded.overhead import overhead


def main() -> None:
    """Record, analyse, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recorded")
    parser.add_argument("--rounds", type=int, default=5, help="recordings of each, in turn")
    parser.add_argument("--only", default="", help="cases whose name or rule contains this")
    parser.add_argument("--delays", action="store_true", help="a rank that is late by 1, 3, 10 ms")
    parser.add_argument("--overhead", action="store_true", help="what recording costs")
    options = parser.parse_args()
    if options.delays:
        delays(options.rounds)
    if options.overhead:
        overhead(options.rounds)
    if options.delays or options.overhead:
        return
    judge([c for c in CASES if options.only in c.title or options.only in c.rule], options.rounds)


if __name__ == "__main__":
    main()
