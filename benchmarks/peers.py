"""What is measured, one function each: files in, work done, nothing printed.

``python -m benchmarks.peers NAME FILE…`` does one in a process of its own and prints
the seconds of the work itself, without the imports that it needs.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

__all__ = ["PEERS"]

Work = Callable[[], object]


def decompress(paths: Sequence[Path]) -> Work:
    """Bare decompression, ISA-L, one megabyte at a time: the floor of any reader."""
    from isal import igzip

    def work() -> None:
        for path in paths:
            with igzip.open(path, "rb") as stream:
                while stream.read(1 << 20):
                    pass

    return work


def decompress_and_match(paths: Sequence[Path]) -> Work:
    """The same and one regular expression over every byte."""
    from isal import igzip

    pattern = re.compile(rb'"cat": "(?:kernel|gpu_memcpy|gpu_memset|cuda_runtime)"')

    def work() -> None:
        for path in paths:
            with igzip.open(path, "rb") as stream:
                while block := stream.read(1 << 20):
                    pattern.findall(block)

    return work


def commtrace_scan(paths: Sequence[Path]) -> Work:
    """commtrace: bytes to columns, communication and GPU events, one process."""
    from commtrace.reader.json.scan import scan

    return lambda: [scan(path) for path in paths]


def commtrace_every_event(paths: Sequence[Path]) -> Work:
    """commtrace: every event of the files with its name and times, one process."""
    from commtrace.reader.json import Event, every_event

    return lambda: [every_event(path, Event) for path in paths]


def commtrace_read(paths: Sequence[Path]) -> Work:
    """commtrace: files to the pandas tables of a Trace."""
    from commtrace.reader import read

    return lambda: read(list(paths))


def commtrace_analyze(paths: Sequence[Path]) -> Work:
    """commtrace: the whole ``analyze --format json``, without the process's start."""
    from commtrace.reports.formats.json import render
    from commtrace.run import load

    return lambda: render(load(list(paths), cache=False).analysis())


def json_pandas(paths: Sequence[Path]) -> Work:
    """gzip, json and a DataFrame of the events."""
    import gzip

    import pandas as pd

    def work() -> None:
        for path in paths:
            with gzip.open(path) as stream:
                pd.DataFrame(json.load(stream)["traceEvents"])

    return work


def orjson_pandas(paths: Sequence[Path]) -> Work:
    """ISA-L, orjson and a DataFrame of the events."""
    import orjson
    import pandas as pd
    from isal import igzip

    def work() -> None:
        for path in paths:
            with igzip.open(path) as stream:
                pd.DataFrame(orjson.loads(stream.read())["traceEvents"])

    return work


def hta(paths: Sequence[Path]) -> Work:
    """Holistic Trace Analysis: load, then the overlap of communication and computation."""
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
    from hta.trace_analysis import TraceAnalysis

    def work() -> None:
        files = {rank: str(path) for rank, path in enumerate(paths)}
        TraceAnalysis(trace_files=files, trace_dir="").get_comm_comp_overlap(visualize=False)

    return work


def tracelens(paths: Sequence[Path]) -> Work:
    """TraceLens: the summary of NCCL operations."""
    from TraceLens import NcclAnalyser

    def work() -> None:
        NcclAnalyser([str(path) for path in paths], len(paths)).build_df_long()

    return work


def trace_processor(paths: Sequence[Path]) -> Work:
    """Perfetto's: import, and the number of slices."""
    from tests.perfetto.trace_processor import answers

    return lambda: [answers(path, "SELECT COUNT(*) FROM slice") for path in paths]


PEERS = {
    work.__name__: work
    for work in (
        decompress,
        decompress_and_match,
        commtrace_scan,
        commtrace_every_event,
        commtrace_read,
        commtrace_analyze,
        json_pandas,
        orjson_pandas,
        hta,
        tracelens,
        trace_processor,
    )
}


def main() -> None:
    """Do one peer's work and print its seconds."""
    work = PEERS[sys.argv[1]]([Path(name) for name in sys.argv[2:]])
    start = time.perf_counter()
    work()
    sys.stdout.write(f"\n{time.perf_counter() - start}\n")


if __name__ == "__main__":
    main()
