"""The order in which a graph is replayed: its chains drawn together, level by level."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from commtrace.arrays import Bool, Int32, Int64, Signed, fewest, narrow, sorted_by
from commtrace.causal.replay.node_times import NodeTimes
from commtrace.causal.replay.ways import Levels

__all__ = ["Order", "order_of"]

_Sizes = npt.NDArray[np.unsignedinteger[Any]]


class Order(Struct, frozen=True, eq=False):
    """Where each ``node`` is then, and which the ``edges`` are, in their order.

    Each head of a chain is followed by all that hang on it: ``first`` is where each is, and where
    the last chain ends; the first ``free`` wait for nothing, the others are led to in ``levels``.
    On each node ``hung`` of them hang, itself included. The edges to nodes that wait for
    several come first, as ``levels`` have them; then the others, by the place of their target.
    """

    node: Int32
    edges: Int32
    first: Int32
    free: int
    hung: _Sizes
    levels: Levels


def order_of(time_ns: Int64 | NodeTimes, source: Int32, target: Int32) -> Order | None:
    """The order of a graph's nodes, which happened at these times, and edges.

    None where nodes wait for themselves: nothing can be replayed.
    """
    count = time_ns.size
    into = fewest(np.bincount(target, minlength=count))
    is_link = into[target] == 1
    link, several = np.full(count, -1, dtype=np.int32), _where(~is_link)
    link[target[is_link]] = _where(is_link)
    del is_link
    trees = _trees(_parents(link, source))
    if trees is None or (into[trees[0]] == 1).any():
        return None
    roots, place, size = trees
    several = several[sorted_by(target[several])]
    level = _levels(roots[source[several]], target[several], into, time_ns)
    if level is None:
        return None
    free, joint = _where(into == 0), _where(into > 1)
    order = sorted_by(into[joint])
    order = order[sorted_by(level[order])]
    joint, level = joint[order], level[order]
    heads = np.append(free, joint)
    first = np.zeros(heads.size + 1, dtype=np.int32)
    np.cumsum(size[heads], out=first[1:])
    at = np.zeros(count, dtype=np.int32)
    at[heads] = first[:-1]
    place += at[roots]
    hung = np.empty_like(size)
    hung[place] = size
    del trees, at, roots, size
    places, levels = _batches(joint, level, into, free.size)
    links = np.empty_like(link)
    links[place] = link
    links = links[links >= 0]
    del link
    edges = np.append(several[places], links)
    return Order(place, edges, first, free.size, hung, levels)


def _parents(link: Int32, source: Int32) -> Int32:
    """Where the only edge to each node comes from; the others are their own."""
    parent, linked = np.arange(link.size, dtype=np.int32), _where(link >= 0)
    parent[linked] = source[link[linked]]
    return parent


def _where(those: Bool) -> Int32:
    return np.flatnonzero(those).astype(np.int32)


def _trees(parent: Int32) -> tuple[Int32, Int32, _Sizes] | None:
    """Of each node its root, its place behind it, and how many hang on it, itself included.

    A node that hangs on none is its own parent. The last in as few bytes as they need. None where
    nodes hang on themselves.
    """
    own = np.arange(parent.size, dtype=np.int32)
    inner = parent != own
    # In a row each is all that hangs on the one before: few rows are left, however long they are.
    only = np.bincount(parent[inner], minlength=parent.size) == 1
    first = np.where(inner & only[parent], parent, own)
    starts, behind = _where(first == own), (first != own).astype(np.int32)
    for nodes, before in _hops(first):
        behind[nodes] += behind[before]
    number = np.full(parent.size, -1, dtype=np.int32)
    number[starts] = own[: starts.size]
    row = number[first]
    above, behind = row[parent[starts]], fewest(behind)
    del own, inner, only, first, number, parent
    if (row < 0).any():
        return None
    rows = _hung(above, np.bincount(row).astype(np.int32))
    if rows is None:
        return None
    roots, place, size = rows
    hung = (size[row] - behind).astype(np.min_scalar_type(int(size.max(initial=0))))
    return starts[roots[row]], place[row] + behind, hung


def _hung(above: Int32, length: Int32) -> tuple[Int32, Int32, Int32] | None:
    """Of rows that hang on the ends of others root, place and size, as of nodes."""
    own, roots = np.arange(above.size, dtype=np.int32), above.copy()
    hops = list(_hops(roots))
    if (above[roots] != roots).any():
        return None
    size = length.copy()
    for rows, before in reversed(hops):
        np.add.at(size, before, size[rows])
    inner, outer = _where(above != own), _where(above == own)
    inner = inner[sorted_by(above[inner])]
    before = np.cumsum(size[inner], dtype=np.int32) - size[inner]
    first = np.flatnonzero(np.diff(above[inner], prepend=-1))
    counts = np.diff(np.append(first, inner.size))
    place = np.zeros(above.size, dtype=np.int32)
    place[inner] = length[above[inner]] + before - np.repeat(before[first], counts)
    for rows, before in hops:
        place[rows] += place[before]
    size[outer] = np.bincount(roots, length, above.size)[outer]
    return roots, place, size


def _hops(up: Int32) -> Iterator[tuple[Int32, Int32]]:
    """Nodes 1, 2, 4, … steps from one, or more, with what is so far before them.

    What is before each becomes its root.
    """
    nodes = _where(up[up] != up)
    for _ in range(up.size.bit_length()):  # nodes in a circle are left then
        if not nodes.size:
            break
        before = up[nodes]
        yield nodes, before
        up[nodes] = up[before]
        nodes = nodes[up[up[nodes]] != up[nodes]]


def _levels(source: Int32, target: Int32, into: Signed, time_ns: Int64 | NodeTimes) -> Int32 | None:
    """The level of each node with several edges, which lead to it from sources of lower levels.

    Targets are in their order. None where a node depends on itself. Each node goes by the
    source that it takes for the highest, at first the latest; with the levels that this gives,
    those who were wrong choose again: a few rounds, however many levels there are.
    """
    joint, inner = _where(into > 1), into[source] > 1
    source, target = source[inner], target[inner]
    number = np.cumsum(into > 1, dtype=np.int32)
    number -= 1
    source, target = number[source], number[target]
    del number
    begins = _where(np.diff(target, prepend=np.int32(-1)) != 0)
    heads, sizes = target[begins], np.diff(np.append(begins, np.int32(target.size)))
    above, level = (
        np.arange(joint.size, dtype=np.int32),
        narrow(time_ns[joint] - time_ns[joint[:1]]),
    )
    if (source == target).any():
        return None
    if not heads.size:
        return np.zeros(joint.size, dtype=np.int32)
    wrong = np.ones(heads.size, dtype=np.bool_)
    come = level[source]
    highest = np.maximum.reduceat(come, begins)
    while wrong.any():
        chosen = come == np.repeat(np.where(wrong, highest, -1), sizes)
        above[target[chosen]] = source[chosen]
        del chosen
        if (found := _depths(above)) is None:
            return None
        level, come = found, found[source]
        highest = np.maximum.reduceat(come, begins)
        wrong = highest >= level[heads]
    return level.astype(np.int32, copy=False)


def _depths(above: Int32) -> Int32 | None:
    """How far each is below the one, itself above itself, that all above it lead to.

    None where they lead nowhere.
    """
    own = np.arange(above.size, dtype=np.int32)
    is_inner = np.zeros(above.size, dtype=np.bool_)
    is_inner[above] = True
    inner, number = _where(is_inner), np.cumsum(is_inner, dtype=np.int32) - 1
    on = number[above]  # most have none below them: all go by these few
    up = on[inner]
    depth = (up != own[: up.size]).astype(np.int32)
    for _ in range(up.size.bit_length()):
        if not (more := depth[up]).any():
            break
        depth += more
        up = up[up]
    if (on[inner][up] != up).any():
        return None
    below: Int32 = depth[on] + (above != own)
    return below


def _batches(joint: Int32, level: Int32, into: Signed, free: int) -> tuple[Int32, Levels]:
    """Edges to nodes of one level and as many edges: of each the first, of each the second, ….

    As places among all edges to joint nodes, by node. Heads behind ``free`` others are led to.
    """
    sizes = np.where(into > 1, into, 0)
    first = (np.cumsum(sizes, dtype=np.int32) - sizes)[joint]
    size = into[joint]
    begin = np.flatnonzero((np.diff(size, prepend=0) != 0) | (np.diff(level, prepend=0) != 0))
    nodes = np.diff(np.append(begin, joint.size))
    edges = nodes * size[begin]
    start = np.cumsum(edges) - edges
    places = np.arange(edges.sum(), dtype=np.int32)
    places -= np.repeat(start.astype(np.int32), edges)
    places, node = np.divmod(places, np.repeat(nodes.astype(np.int32), edges))
    node += np.repeat(begin.astype(np.int32), edges)
    places += first[node]
    return places, Levels(start, begin + free, nodes, size[begin].astype(np.int64))
