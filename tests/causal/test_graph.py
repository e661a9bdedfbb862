"""Laws of replaying a graph, over any graph."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtrace.arrays import Int64
from commtrace.causal.replay import graph as graph_module
from commtrace.causal.replay import plan, ways
from commtrace.causal.replay.graph import DROPPED, Change, Graph, Latest, arranged, replay


@dataclass(frozen=True)
class Case:
    graph: Graph
    edge: int
    more_ns: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A graph whose nodes wait for any of those before them; chains are frequent."""
    count = draw(st.integers(2, 14))
    lags = st.integers(0, 1_000)
    pairs: set[tuple[int, int]] = set()
    for node in range(1, count):
        sources = st.just([node - 1]) | st.lists(st.integers(0, node - 1), max_size=3)
        pairs |= {(source, node) for source in draw(sources)}
    pairs = pairs or {(0, 1)}
    source, target = (np.asarray(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    lag = np.asarray(draw(st.lists(lags, min_size=len(pairs), max_size=len(pairs))), np.int64)
    roots = np.asarray(draw(st.lists(lags, min_size=count, max_size=count)), dtype=np.int64)
    kind = np.zeros(lag.size, np.int8)
    time = longest(Graph(roots, source, target, lag, kind), lag)
    return Case(
        Graph(time, source, target, lag, kind),
        draw(st.integers(0, lag.size - 1)),
        draw(st.integers(0, 5_000)),
    )


def in_order(case: Case) -> Case:
    """The same, as it is replayed."""
    its = arranged(*(getattr(case.graph, name)[:].copy() for name in Graph.__dataclass_fields__))
    assert its is not None
    graph, _, edge = its
    return Case(graph, int(edge[case.edge]), case.more_ns)


def longest(graph: Graph, lag: Int64) -> Int64:
    """The longest path to each node, found naively: sources come before targets."""
    time = graph.time_ns.copy()
    for node in range(time.size):
        into = graph.target[:] == node
        if into.any():
            time[node] = (time[graph.source[into]] + lag[into]).max()
    return time


def changes(lags: Int64) -> Iterator[Change]:
    """What the lags of each edit, of edges × edits, change of those of the first."""
    for lag in lags.T:
        edges = np.flatnonzero(lag != lags[:, 0])
        yield edges, lag[edges]


@given(cases())
def test_unchanged_lags_give_every_time_again(case: Case) -> None:
    again = replay(case.graph, case.graph.lag_ns[:, None])[:, 0]
    assert again.tolist() == case.graph.time_ns.tolist()


@given(cases(), st.integers(1, 20))
def test_each_edit_is_what_the_longest_path_is(case: Case, edits: int) -> None:
    lags = case.graph.lag_ns[:, None] + np.arange(edits) * case.more_ns
    lags[case.edge, ::2] = DROPPED
    replayed = replay(case.graph, lags)
    for edit in range(edits):
        assert replayed[:, edit].tolist() == longest(case.graph, lags[:, edit]).tolist()


@given(cases())
def test_a_dropped_edge_makes_nothing_later(case: Case) -> None:
    lag = case.graph.lag_ns.copy()
    lag[case.edge] = DROPPED
    assert (replay(case.graph, lag[:, None])[:, 0] <= case.graph.time_ns).all()


@given(cases())
def test_a_longer_edge_makes_nothing_earlier(case: Case) -> None:
    lag = case.graph.lag_ns.copy()
    lag[case.edge] += case.more_ns
    later = replay(case.graph, lag[:, None])[:, 0] - case.graph.time_ns
    assert (later >= 0).all()


@given(cases().map(in_order), st.integers(1, 20), st.data())
def test_the_latest_of_some_nodes_is_that_of_all_their_times(
    case: Case, edits: int, data: st.DataObject
) -> None:
    count = case.graph.time_ns.size
    nodes = np.asarray(data.draw(st.lists(st.integers(0, count - 1), min_size=3)), dtype=np.int64)
    group = np.arange(nodes.size) % 3
    lags = case.graph.lag_ns[:, None] + np.arange(edits) * case.more_ns
    lags[case.edge, ::2] = DROPPED
    time, latest = replay(case.graph, lags), Latest(case.graph, nodes, group)
    expected = np.stack([time[nodes[group == each]].max(axis=0) for each in range(3)])
    assert latest.replayed(lags[:, 0], changes(lags)).tolist() == expected.tolist()
    assert latest.at(time[:, 0]).tolist() == expected[:, 0].tolist()


@given(cases().map(in_order), st.integers(1, 20))
def test_edits_in_turn_are_as_all_at_once(case: Case, edits: int) -> None:
    lags = case.graph.lag_ns[:, None] + np.arange(edits) * case.more_ns
    latest = Latest(case.graph, np.arange(2), np.arange(2))
    with patch.object(graph_module, "_MOST_BYTES", 1):
        in_turn = latest.replayed(lags[:, 0], changes(lags))
    assert in_turn.tolist() == latest.replayed(lags[:, 0], changes(lags)).tolist()
    assert in_turn.shape == (2, edits)


@given(cases().map(in_order), st.integers(1, 20))
def test_levels_are_followed_way_by_way_as_at_once(case: Case, edits: int) -> None:
    lags = case.graph.lag_ns[:, None] + np.arange(edits) * case.more_ns
    latest = Latest(case.graph, np.arange(2), np.arange(2))
    with patch.object(ways, "_FEW", 0):
        at_once = latest.replayed(lags[:, 0], changes(lags))
    with patch.object(ways, "_FEW", 1_000):
        one_by_one = latest.replayed(lags[:, 0], changes(lags))
    assert one_by_one.tolist() == at_once.tolist()


@given(cases().map(in_order))
def test_graph_in_order_is_arranged_already(case: Case) -> None:
    again = in_order(case)
    for name in Graph.__dataclass_fields__:
        assert getattr(again.graph, name)[:].tolist() == getattr(case.graph, name)[:].tolist()
    sent: Graph = pickle.loads(pickle.dumps(case.graph))
    assert sent.plan.times(case.graph.lag_ns).tolist() == case.graph.time_ns[:].tolist()


@given(cases().map(in_order))
def test_what_changes_nothing_is_not_replayed(case: Case) -> None:
    nothing = np.empty(0, np.int64)
    latest = Latest(case.graph, np.arange(2), np.arange(2))
    with patch.object(ways.Ways, "follow", side_effect=AssertionError):
        again = latest.replayed(case.graph.lag_ns, [(nothing, nothing)] * 2)
    assert again.T.tolist() == [case.graph.time_ns[:2].tolist()] * 2


def many_chains(most_ns: int = 1_000) -> Graph:
    """A graph of two thousand nodes, most of which wait for one other or two."""
    random = np.random.default_rng(0)
    node = np.arange(1, 2_000)
    again = node[random.random(node.size) < 0.3]
    target = np.concatenate((node, again)).astype(np.int32)
    source = np.maximum(target - random.choice([1, 2, 30], target.size), 0).astype(np.int32)
    lag = random.integers(0, most_ns, target.size)
    kind = np.zeros(lag.size, np.int8)
    time = longest(Graph(np.zeros(2_000, np.int64), source, target, lag, kind), lag)
    return Graph(time, source, target, lag, kind)


def test_edges_of_many_chains_are_between_the_same_nodes() -> None:
    raw = many_chains()
    its = arranged(*(getattr(raw, name)[:].copy() for name in Graph.__dataclass_fields__))
    assert its is not None
    graph, node, edge = its
    for name in ("source", "target"):
        ends = node[getattr(raw, name)].tolist()
        assert getattr(graph, name)[edge].tolist() == ends
        assert getattr(graph, name)[:][edge].tolist() == ends


@pytest.mark.parametrize("most_ns", [1_000, 2**40], ids=["32 bits", "64 bits"])
def test_some_chains_at_a_time_are_as_all(most_ns: int) -> None:
    raw = many_chains(most_ns)
    its = arranged(*(getattr(raw, name)[:].copy() for name in Graph.__dataclass_fields__))
    assert its is not None
    graph, node, edge = its
    lag = raw.lag_ns.copy()
    lag[::7] += most_ns
    changed = edge[::7], lag[::7]
    ends = Latest(graph, np.arange(2_000), np.arange(2_000))
    for many in (0, 2):  # edges anew, and then those that are later
        with patch.object(plan, "_AT_ONCE", 50), patch.object(graph_module, "_MANY", many):
            latest = ends.replayed(graph.lag_ns, [changed])[:, 0]
        assert latest[node].tolist() == longest(raw, lag).tolist()


def test_no_edits_have_no_answers() -> None:
    one = np.zeros(1, np.int64)
    graph = Graph(np.arange(2), one, one + 1, one + 1, one.astype(np.int8))
    assert replay(graph, np.empty((1, 0), np.int64)).shape == (2, 0)
    assert Latest(graph, np.arange(2), np.arange(2)).replayed(one, ()).shape == (2, 0)


@pytest.mark.parametrize(
    "edges",
    [
        pytest.param([(0, 1), (1, 2), (2, 3)], id="none"),
        pytest.param([(1, 2), (2, 3), (3, 1)], id="nodes with one edge each"),
        pytest.param([(0, 1), (2, 2)], id="one alone"),
        pytest.param([(1, 2), (2, 1), (2, 3)], id="another hangs on them"),
        pytest.param([(1, 2), (2, 1), (1, 0), (2, 3)], id="others hang on each"),
        pytest.param([(0, 1), (3, 1), (1, 2), (2, 3)], id="behind a joint node"),
        pytest.param([(0, 1), (2, 1), (0, 2), (1, 2)], id="two joint nodes"),
    ],
)
def test_nodes_that_wait_for_themselves_are_found(
    edges: list[tuple[int, int]], request: pytest.FixtureRequest
) -> None:
    source, target = np.asarray(edges, dtype=np.int32).T.copy()
    lag = np.zeros(len(edges), np.int64)
    its = arranged(np.zeros(4, np.int64), source, target, lag, lag.astype(np.int8))
    assert (its is None) == ("none" not in request.node.callspec.id)
