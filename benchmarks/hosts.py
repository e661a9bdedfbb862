"""``python -m benchmarks.hosts``: two hosts, one of them behind a slow link, on this machine.

Two network namespaces, each with a host name of its own, joined by virtual cables; what
the second sends may be shaped. Each runs ``commtrace record`` as a node. Both clocks are really
one, so the true offset is 0. Over a slow link an uneven all_to_all costs what it says.
Needs root and iproute2's ``ip`` and ``tc``.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import commtrace
from benchmarks.namespaces import joined, nodes, shape
from benchmarks.recorded.measure import WORKLOADS, analysed

DECOMPOSED = ("decomposed_all_reduce", "--set", "elements=262144")
EXCHANGE = (str(WORKLOADS / "exchange.py"), "--set")
LINKS_MBIT = (None, 800, 200)


def record(folder: Path, *workload: str) -> commtrace.Run:
    """One node on each host, one rank on each node, analysed together."""
    statuses = [node.wait(300) for node in nodes(folder, *workload)]
    if any(statuses):
        raise SystemExit("a node could not record")
    return commtrace.load(folder)


def row(name: str, run: commtrace.Run) -> str:
    """What the analysis says of the link."""
    clock = run.clock
    other = clock[clock["rank"] == 1].iloc[0]
    operations = run.bandwidth()
    whole = operations[operations["op"] == "all_reduce"]["busbw_gb_s"].median()
    faults = ", ".join(finding.rule for finding in run.diagnose().findings[:4]) or "none"
    offset_us, error_us = other["offset_ns"] / 1e3, other["error_ns"] / 1e3
    clock = f"{offset_us:+.1f} ± {error_us:.1f}, {other['provenance']}"
    return f"| {name} | {clock} | {whole:.3f} | {faults} |"


def uneven(folder: Path, rounds: int) -> None:
    """The same bytes exchanged unevenly and evenly, in turn: the gain said, and that had."""
    gained, said, named = [], [], 0
    for number in range(rounds):
        one, other = (
            analysed(record(folder / f"{number}-{even}", *EXCHANGE, f"even={even}"))
            for even in ("no", "yes")
        )
        costs_ns, none = (
            [f.cost_ns for f in each.findings if f.rule == "uneven-all-to-all"]
            for each in (one, other)
        )
        named += bool(costs_ns) + (not none)
        said.append(sum(costs_ns[:1]) / 1e6 / len(one.steps_ms))
        gained.append(one.step_ms - other.step_ms)
    gain, predicted = statistics.median(gained), statistics.median(said)
    print(
        f"\nAn uneven all_to_all at {LINKS_MBIT[1]} Mbit/s: told from an even one in {named} of "
        f"{2 * rounds} recordings; evening it out gains {gain:.1f} ms a step, {predicted:.1f} ms "
        f"were predicted ({predicted / gain - 1:+.0%}; medians of {rounds})."
    )


def main() -> None:
    """Record over the cable as it is, and shaped: a row for each; then an uneven exchange."""
    argparse.ArgumentParser(prog="python -m benchmarks.hosts", description=__doc__).parse_args()
    print("| link | clock offset, µs | all_reduce busbw, GB/s | first findings |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, joined():
        for mbit in LINKS_MBIT:
            name = f"{mbit} Mbit/s = {mbit / 8e3:.3f} GB/s" if mbit else "as it is"
            shape(1, 0, mbit)
            print(row(name, record(Path(folder, str(mbit)), *DECOMPOSED)), flush=True)
        shape(1, 0, LINKS_MBIT[1])
        uneven(Path(folder), rounds=3)


if __name__ == "__main__":
    main()
