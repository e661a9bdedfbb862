"""``python -m benchmarks.device_graph TRACE…``: what the graph of a rank's GPU work explains.

For each trace: how many starts of kernels and copies follow, within 6 and within 15 us, the end of
what the graph says that they waited for on their own or on another stream; how many their
launch, with the lag that was measured; and how many of the host's waits for a GPU end so.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from commtrace.causal.rank.device_graph import DeviceGraph, device_graph, explained
from commtrace.reader.files import find
from commtrace.reader.workers import Failure, read_each
from commtrace.trace_tables import TABLES

WITHIN_NS = (6_000, 15_000)
HEAD = ("trace", "starts", "by launch", "≤ 6 us", "≤ 15 us", "waits of the host", "by the call")
HEAD += ("≤ 6 us", "≤ 15 us", "CPU ms")


def row(graph: DeviceGraph) -> tuple[int, ...]:
    """Starts, those by their launch, those explained; the same of the host's waits."""
    found: list[int] = []
    each = [explained(graph, within_ns) for within_ns in WITHIN_NS]
    for node, own in (("start", "launch"), ("resume", "call")):
        first = each[0][node]
        found += (sum(first.values()), first.get(own, 0))
        found += [_by_edges(counts[node], own) for counts in each]
    return tuple(found)


def _by_edges(counts: Mapping[str, int], own: str) -> int:
    return sum(n for kind, n in counts.items() if kind not in (own, "unexplained", "first"))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="+", help="files, folders or glob patterns")
    files = find(parser.parse_args().trace)
    print("|", " | ".join(HEAD), "|")
    print("|", " | ".join(["---"] * len(HEAD)), "|")
    for file, part in read_each(dict.fromkeys(files, (0, "assumed")), workers=1):
        if isinstance(part, Failure):
            print(part.why, file=sys.stderr)
            continue
        began = time.process_time()
        tables = {table.name: table.rows(part.columns[table.name]) for table in TABLES}
        graph = device_graph(tables)
        took = (time.process_time() - began) * 1e3
        cells = (_name(file), *map("{:,}".format, row(graph)), f"{took:.0f}")
        print("|", " | ".join(cells), "|")


def _name(file: Path) -> str:
    return file.name.removesuffix(".gz").removesuffix(".json")


if __name__ == "__main__":
    main()
