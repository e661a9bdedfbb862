"""Lags within a host's round trips to its device, as where it asks for one value after another."""

from __future__ import annotations

import numpy as np

from commtrace.arrays import Bool
from commtrace.causal.rank.device_graph import EDGES, NODES, DeviceGraph

__all__ = ["round_trips"]

_MOST, _LONGEST_NS = 16, 250_000
"""Launches, and the time, between two resumptions of the host: one that gave its device more waits
for what that did rather than for its answer."""
_RESUME = EDGES.index("resume")
_LAGS = [EDGES.index(kind) for kind in ("launch", "stream", "turn", "resume")]
_LAUNCH = NODES.index("launch")


def round_trips(its: DeviceGraph, communicates: Bool) -> Bool:
    """Which edges are such lags: from a launch, between kernels, and to the host that resumed.

    A host that loops over ``.item()`` takes little else: they are part of what its rank does by
    itself, of which those count that bind. Not where it waits for an operation, whose starts and
    ends ``communicates`` has.
    """
    alone = its.edge_binds & ~communicates[its.edge_from] & ~communicates[its.edge_to]
    resumes = alone & (its.edge_kind == _RESUME)
    resumed = its.edge_to[resumes]  # nodes are in the order of their times
    launches = np.flatnonzero(its.node_kind == _LAUNCH)
    given = np.diff(np.searchsorted(launches, resumed), prepend=0)
    took_ns = np.diff(its.node_time_ns[resumed], prepend=0)
    short = (given <= _MOST) & (took_ns <= _LONGEST_NS)
    lags = np.flatnonzero(alone & np.isin(its.edge_kind, _LAGS))
    trip = np.searchsorted(resumed, its.edge_to[lags])
    found = np.zeros(its.edge_kind.size, dtype=np.bool_)
    found[lags[np.append(short, False)[trip]]] = True
    return found
