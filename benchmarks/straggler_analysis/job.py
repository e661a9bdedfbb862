"""A job of StragglerAnalysis as a graph: the table of its operations, and who waits for whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from commtrace.arrays import Int64, integers
from commtrace.causal.replay.graph import Graph
from commtrace.errors import TraceError

__all__ = ["DURATION", "LAUNCH", "Job", "job_of", "only", "read"]

FIELDS = ("step", "dp_rank", "stage", "optype", "seq_id", "mc", "start_ts", "duration")
WORKER = ["step", "dp_rank", "stage"]
PIPELINE = ("forward-send", "forward-recv", "backward-send", "backward-recv")
PARAMS, GRADS = "params-all-gather", "grads-reduce-scatter"
EMBEDDING, CLIP = "embedding-grads-all-reduce", "optimizer-clip-main-grad"
PROGRAM = {
    PARAMS: 0,
    "forward-compute": 1,  # both as they began
    "backward-compute": 1,
    "gc": 2,
    "layernorm-grads-all-reduce": 3,
    EMBEDDING: 4,
    GRADS: 5,
    CLIP: 6,
    "optimizer": 7,
}
"""What a worker does one after the other in a step."""
ARRIVAL, DURATION, LAUNCH = range(3)
EARLIEST, LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True)
class Job:
    """The operations, by row, and their graph.

    Row i begins at node i and ends at node ``len(operations) + i``; the last nodes are the
    beginnings of ``steps``, to which ``step`` points. The graph's edges of kind DURATION are
    in the order of the rows.
    """

    operations: pd.DataFrame
    graph: Graph
    step: Int64
    steps: Int64


def only(path: Path, pattern: str) -> Path:
    """The only file of that pattern in a folder. Raises TraceError."""
    files = sorted(path.glob(pattern))
    if len(files) != 1:
        raise TraceError(
            f"{path}: {len(files) or 'no'} files {pattern}; name a folder with one trace of "
            "data/ in github.com/ByteDance-Seed/StragglerAnalysis and its result"
        )
    return files[0]


def read(path: Path) -> pd.DataFrame:
    """The operations of ``trace-*.parquet`` in a folder.

    Raises TraceError for a missing file or field, and without pyarrow.
    """
    file = only(path, "trace-*.parquet")
    try:
        operations = pd.read_parquet(file, engine="pyarrow")
    except ImportError:
        raise TraceError(f"{file}: parquet is read by pyarrow: pip install pyarrow") from None
    if lacking := sorted(set(FIELDS) - set(operations.columns)):
        raise TraceError(f"{file}: no field {', '.join(lacking)}")
    return operations.astype({"optype": str})


def job_of(table: pd.DataFrame) -> Job:
    """The job from its operations (FIELDS; ``start_ts`` and ``duration`` in seconds).

    Raises TraceError for a schedule that is not modelled and for missing operations.
    """
    if unknown := sorted(set(table["optype"]) - {*PROGRAM, *PIPELINE}):
        raise TraceError(f"optype {unknown[0]}: not modelled")
    if table["mc"].max() > 0:
        raise TraceError("mc above 0: interleaved schedules are not modelled")
    operations = table.reset_index(drop=True)
    step, steps = integers(operations.groupby("step").ngroup()), operations["step"].unique()
    graph = _graph(operations, _groups(operations), step, _waits(operations))
    return Job(operations, graph, step, np.sort(steps))


def _graph(
    operations: pd.DataFrame, group: Int64, step: Int64, waits: tuple[Int64, Int64]
) -> Graph:
    start = _ns(operations["start_ts"])
    end = _ns(operations["start_ts"] + operations["duration"])
    all_begun, step_begun = np.full(group.max() + 1, EARLIEST), np.full(step.max() + 1, LATEST)
    np.maximum.at(all_begun, group, start)
    np.minimum.at(step_begun, step, start)
    time = np.concatenate([start, end, all_begun, step_begun])
    starts, ends = np.arange(2 * start.size).reshape(2, -1)
    groups, steps = 2 * start.size + group, time.size - step_begun.size + step
    before, after = waits
    source = np.concatenate([starts, groups, steps, ends[before]])
    target = np.concatenate([groups, ends, starts, starts[after]])
    kind = np.repeat([ARRIVAL, DURATION, LAUNCH], [start.size, start.size, start.size + after.size])
    latest = np.full(time.size, EARLIEST)
    np.maximum.at(latest, target, time[source])
    lag = np.where(kind == ARRIVAL, 0, (time - latest)[target])
    return Graph(time, source, target, lag, kind.astype(np.int8))


def _ns(seconds: pd.Series[Any]) -> Int64:
    return np.rint(seconds.to_numpy(dtype=np.float64) * 1e9).astype(np.int64)


def _groups(operations: pd.DataFrame) -> Int64:
    """The number of each operation's group; most are alone in theirs."""
    op = operations["optype"]
    stages, data_ranks = (int(operations[of].max()) + 1 for of in ("stage", "dp_rank"))
    with_previous = op.isin(["forward-recv", "backward-send"])
    key = pd.DataFrame(
        {
            "op": op.str.replace("-(?:send|recv)$", "", regex=True),
            "step": operations["step"],
            "seq_id": operations["seq_id"],
            "stage": (operations["stage"] - with_previous).mask(op.isin([EMBEDDING, CLIP]), -1),
            "dp_rank": operations["dp_rank"].mask(op.isin([PARAMS, GRADS, CLIP]), -1),
        }
    )
    groups = key.groupby([*key])
    sizes = {PARAMS: data_ranks, GRADS: data_ranks, CLIP: data_ranks * stages}
    sizes |= {EMBEDDING: min(stages, 2)} | dict.fromkeys(PIPELINE, 2)
    found, needed = groups["op"].transform("size"), op.map(sizes).fillna(1).astype(int)
    if (wrong := np.flatnonzero(found != needed)).size:
        row = wrong[0]
        took_part = f"{found[row]} take part instead of {needed[row]}"
        raise TraceError(f"{_name(operations.iloc[row])}: {took_part}")
    return integers(groups.ngroup())


def _name(row: pd.Series[Any]) -> str:
    where = f"step {row['step']}, data rank {row['dp_rank']}, stage {row['stage']}"
    return f"{where}: {row['optype']} {row['seq_id']}"


def _waits(operations: pd.DataFrame) -> tuple[Int64, Int64]:
    """Rows that must have ended, and those that wait for them."""
    program = operations.assign(place=operations["optype"].map(PROGRAM)).dropna(subset="place")
    program = program.sort_values([*WORKER, "place", "start_ts"])
    row, worker = program.index.to_numpy(), program.groupby(WORKER).ngroup().to_numpy()
    next_one = worker[1:] == worker[:-1]
    pairs = [(row[:-1][next_one], row[1:][next_one]), *_exchanges(operations)]
    before, after = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return before, after


def _exchanges(operations: pd.DataFrame) -> Iterator[tuple[Int64, Int64]]:
    """A send waits for its compute, a compute for its recv, a recv for the compute before that."""
    for way in ("forward", "backward"):
        compute, send, recv = (
            operations[operations["optype"] == f"{way}-{act}"]
            for act in ("compute", "send", "recv")
        )
        computed, sent = _same(compute, send)
        computing, received = _same(compute, recv)
        if alone := {*send.index, *recv.index}.difference(sent, received):
            raise TraceError(f"{_name(operations.iloc[min(alone)])}: its {way}-compute is missing")
        yield computed, sent
        yield received, computing
        yield _same(compute.assign(seq_id=compute["seq_id"] + 1), recv)


def _same(first: pd.DataFrame, second: pd.DataFrame) -> tuple[Int64, Int64]:
    """Rows of both with the same worker and ``seq_id``."""
    key = [*WORKER, "seq_id"]
    both = first[key].reset_index().merge(second[key].reset_index(), on=key)
    return both["index_x"].to_numpy(dtype=np.int64), both["index_y"].to_numpy(dtype=np.int64)
