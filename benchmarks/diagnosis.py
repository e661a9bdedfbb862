"""``python -m benchmarks.diagnosis``: how often the diagnosis is right, on known faults.

Thresholds are tuned on even seeds only; the table is of odd ones.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter, defaultdict

from benchmarks.faults import CLEAN, FAULTS
from commtrace.rules import RULES, diagnose


def main() -> None:
    """Judge every rule on runs with its fault, with others' faults, and clean."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.diagnosis")
    parser.add_argument("--seeds", type=int, default=20, help="runs of each fault")
    parser.add_argument("--tune", action="store_true", help="the even seeds, for tuning")
    options = parser.parse_args()
    seeds = [2 * i + (not options.tune) for i in range(options.seeds)]
    named: dict[str, list[bool]] = defaultdict(list)
    gains: dict[str, list[float]] = defaultdict(list)
    beside: dict[str, Counter[str]] = defaultdict(Counter)
    for fault in (*FAULTS, *CLEAN):
        for seed in seeds:
            case = fault(seed)
            faults = [f for f in diagnose(case.trace).findings if not RULES[f.rule].good_news]
            mine = [f for f in faults if f.rule == case.rule]
            right = bool(mine) and (not case.ranks or mine[0].ranks == case.ranks)
            named[fault.__name__].append(right if case.rule else not faults)
            if mine and case.gain_us:
                gains[fault.__name__].append(mine[0].cost_ns / 1e3 / case.gain_us - 1)
            beside[fault.__name__].update({f.rule for f in faults} - {case.rule})
    print("| run | as expected | error of the gain, median | other findings |")
    print("|---|---|---|---|")
    for name, answers in named.items():
        error = f"{statistics.median(gains[name]):+.1%}" if gains[name] else ""
        others = ", ".join(f"{rule} {count}" for rule, count in beside[name].most_common())
        print(f"| {name} | {sum(answers)}/{len(answers)} | {error} | {others} |")


if __name__ == "__main__":
    main()
