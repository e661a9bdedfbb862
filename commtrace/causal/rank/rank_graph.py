"""The graph of each rank of a run, as whoever read the rank made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from commtrace.causal.rank.device_graph import EDGES, DeviceGraph, device_graph, let_after
from commtrace.causal.rank.device_work import rank_tables
from commtrace.causal.rank.unrecorded import with_waits
from commtrace.measures import rank_measure, taken
from commtrace.packed import pack
from commtrace.table import Columns

if TYPE_CHECKING:
    from commtrace.measures import Measures

__all__ = ["graph_columns", "rank_graph"]

_TYPES = {
    "node_time_ns": np.int64,
    "node_kind": np.int8,
    "node_table": np.int8,
    "node_row": np.int64,
    "edge_from": np.int64,
    "edge_kind": np.int8,
    "edge_binds": np.bool_,
}


def rank_graph(run: Measures, rank: int) -> DeviceGraph:
    """The ``device_graph`` of a rank, with its host's waits. It is not kept: it is large."""
    columns: Any = taken(graph_columns, run, rank)
    its = {name: columns[name].astype(dtype) for name, dtype in _TYPES.items()}
    edges, usual_ns = columns["node_edges"], columns["usual_ns"]
    edge_to = np.repeat(np.arange(edges.size), edges)
    lag_ns = its["node_time_ns"][edge_to] - its["node_time_ns"][its["edge_from"]]
    return DeviceGraph(
        **its,
        edge_to=edge_to,
        edge_lag_ns=let_after(lag_ns, usual_ns[its["edge_kind"]], its["edge_binds"]),
        usual_ns=dict(zip(EDGES, usual_ns.tolist(), strict=True)),
    )


@rank_measure
def graph_columns(run: Measures, rank: int) -> Columns:
    """What tells all of it as packed columns, named as its fields.

    ``node_edges`` is how many edges lead to each node, ``usual_ns`` in the order of EDGES.
    """
    its = device_graph(with_waits(rank_tables(run, rank)))
    columns = {name: getattr(its, name).astype(np.int64) for name in _TYPES}
    columns["node_edges"] = np.bincount(its.edge_to, minlength=its.node_kind.size)
    columns["usual_ns"] = np.asarray([its.usual_ns[kind] for kind in EDGES])
    return pack(columns)
