"""What a rank's GPU work and its host wait for, on runs small enough to see the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.device_graph import row
from commtrace.causal.rank.device_graph import (
    EDGES,
    NODES,
    DeviceGraph,
    device_graph,
    explained,
)
from commtrace.causal.rank.device_work import rank_tables
from commtrace.reader import read
from commtrace.reader.workers import read_each
from commtrace.synthetic import BASE_NS, Tiny
from commtrace.table import Rows
from commtrace.trace import RankTrace
from commtrace.trace_tables import TABLES


def at(us: float) -> int:
    return BASE_NS + round(us * 1e3)


class Drawn:
    """A graph with names for its nodes: ``a`` starts, ``a.`` ends, ``>a`` is launched."""

    def __init__(self, run: Tiny) -> None:
        tables = rank_tables(run.trace(), 0)
        self.graph = device_graph(tables)
        names = [
            tables["kernels"].coded("name").decoded(),
            tables["copies"].coded("kind").decoded(),
            tables["blocking_calls"].coded("name").decoded(),
        ]
        form = {"launch": ">{}", "start": "{}", "end": "{}.", "call": "{}(", "resume": "{})"}
        g = self.graph
        nodes = zip(g.node_kind.tolist(), g.node_table.tolist(), g.node_row.tolist(), strict=True)
        self.names = [form[NODES[kind]].format(names[table][row]) for kind, table, row in nodes]

    def into(self, node: str) -> dict[str, tuple[str, float]]:
        """The edges into a node: source, kind and lag in us; of the one that binds with a ``!``."""
        g, target = self.graph, self.names.index(node)
        return {
            self.names[g.edge_from[e]]: (
                EDGES[g.edge_kind[e]] + "!" * int(g.edge_binds[e]),
                g.edge_lag_ns[e] / 1e3,
            )
            for e in np.flatnonzero(g.edge_to == target).tolist()
        }

    def kinds(self, node: str) -> dict[str, str]:
        return {source: kind for source, (kind, _) in self.into(node).items()}


def replay(graph: DeviceGraph, lag_ns: Any = None) -> list[int]:
    """The times of all nodes, one edge after the other."""
    times = graph.node_time_ns.tolist()
    for node in set(graph.edge_to.tolist()):
        times[node] = -(2**62)
    lags = graph.edge_lag_ns if lag_ns is None else lag_ns
    edges = zip(graph.edge_from.tolist(), graph.edge_to.tolist(), lags.tolist(), strict=True)
    for source, target, lag in edges:
        times[target] = max(times[target], times[source] + lag)
    return times


def is_sound(graph: DeviceGraph) -> None:
    assert replay(graph) == graph.node_time_ns.tolist()
    assert (graph.edge_from < graph.edge_to).all()
    order = np.lexsort((graph.edge_from, graph.edge_to))
    assert (order == np.arange(order.size)).all()
    assert (np.bincount(graph.edge_to[graph.edge_binds], minlength=1) <= 1).all()
    assert set(graph.edge_to[graph.edge_binds].tolist()) == set(graph.edge_to.tolist())


def test_work_waits_for_its_launch_and_for_its_stream() -> None:
    run = Tiny()
    run.kernel(0, 5, 95, name="a", launch_ns=at(0))
    run.kernel(0, 101, 9, name="b", launch_ns=at(10))  # when a has ended
    run.kernel(0, 207, 3, name="c", launch_ns=at(200))
    drawn = Drawn(run)
    assert drawn.into("a") == {">a": ("launch!", 5)}
    assert drawn.into("a.") == {"a": ("run!", 95)}
    assert drawn.into("b") == {">b": ("launch", 5.5), "a.": ("stream!", 1)}
    assert drawn.into("c") == {">c": ("launch!", 7), "b.": ("stream", 1)}
    assert drawn.into(">c") == {">b": ("host!", 190)}
    assert drawn.graph.usual_ns["launch"] == 5500  # the lower quartile of 5 and 7
    assert explained(drawn.graph)["start"] == {
        "launch": 2,
        "stream": 1,
        "unexplained": 0,
        "first": 0,
    }
    is_sound(drawn.graph)


def test_a_recorded_wait_is_for_what_ran_before_the_event() -> None:
    run = Tiny()
    run.kernel(0, 10, 40, name="a", stream=20, launch_ns=at(0))
    run.kernel(0, 60, 90, name="later", stream=20, launch_ns=at(8))
    run.synchronisation(0, "Stream Wait Event", 6, stream=7, awaited_stream=20, recorded_ns=at(4))
    run.kernel(0, 10, 2, name="before", launch_ns=at(3))
    run.kernel(0, 52, 8, name="b", launch_ns=at(9))
    run.kernel(0, 61, 8, name="c", launch_ns=at(11))
    drawn = Drawn(run)
    assert drawn.kinds("b") == {">b": "launch", "before.": "stream", "a.": "wait!"}
    assert drawn.into("b")["a."] == ("wait!", 2)
    assert drawn.kinds("c") == {">c": "launch", "b.": "turn!"}
    is_sound(drawn.graph)


def test_an_operation_is_waited_for_though_the_recording_of_that_is_lost() -> None:
    run = Tiny()
    run.synchronisation(0, "Stream Wait Event", -9, stream=7)
    run.kernel(0, 5, 5, name="a", launch_ns=at(0))
    run.kernel(0, 20, 79, name="reduce", kind="communication", stream=20, launch_ns=at(1))
    run.kernel(0, 102, 6, name="b", launch_ns=at(4))
    assert Drawn(run).kinds("b")["reduce."] == "inferred_wait!"


def waiting_long(*, told: bool, known: bool = True, shared_launch: bool = False) -> Drawn:
    """``b`` starts 90 us after its launch and what ran before it, and another stream's end.

    That its stream was told to wait is ``known`` to be recorded, of whom is not.
    """
    run = Tiny()
    if known:
        run.synchronisation(0, "Stream Wait Event", -9, stream=7)
    run.kernel(0, 5, 5, name="a", launch_ns=at(0))
    run.kernel(0, 5, 94, name="far", stream=20, launch_ns=at(1))
    run.synchronisation(0, "Stream Wait Event", 2, stream=20)
    if told:
        run.synchronisation(0, "Stream Wait Event", 3, stream=7)
    run.kernel(0, 100, 6, name="b", launch_ns=at(4))
    if shared_launch:
        run.kernel(0, 106, 6, name="c", launch_ns=at(4))
    return Drawn(run)


def test_what_nothing_told_to_wait_waits_for_its_device_alone() -> None:
    drawn = waiting_long(told=False)
    assert drawn.kinds("b") == {">b": "launch", "a.": "turn!"}
    assert explained(drawn.graph)["start"] == {"launch": 2, "turn": 1, "unexplained": 0, "first": 0}
    is_sound(drawn.graph)


def test_what_was_told_to_wait_may_wait_for_what_ended_just_before() -> None:
    assert waiting_long(told=True).kinds("b")["far."] == "inferred_wait!"


def test_where_no_wait_of_a_stream_is_recorded_any_may_have_been() -> None:
    assert waiting_long(told=False, known=False).kinds("b")["far."] == "inferred_wait!"


def test_what_kernels_of_one_graph_wait_for_no_call_tells() -> None:
    assert waiting_long(told=False, shared_launch=True).kinds("b")["a."] == "stream"


def test_a_start_soon_after_another_streams_end_has_waited_for_it() -> None:
    run = Tiny()
    run.kernel(0, 5, 5, name="a", launch_ns=at(0))
    run.kernel(0, 10, 90, name="far", stream=20, launch_ns=at(1))
    run.kernel(0, 104, 6, name="b", launch_ns=at(20))
    run.kernel(0, 114, 6, name="c", stream=20, launch_ns=at(109))  # its launch explains it
    run.kernel(0, 160, 6, name="d", launch_ns=at(30))  # nothing does
    drawn = Drawn(run)
    assert drawn.into("b") == {
        ">b": ("launch", 5),
        "a.": ("stream", 6),
        "far.": ("inferred_wait!", 4),
    }
    assert "inferred_wait" not in drawn.kinds("c").values()
    assert drawn.kinds("d") == {">d": "launch", "b.": "stream!"}
    assert explained(drawn.graph)["start"]["unexplained"] == 1
    assert explained(drawn.graph, within_ns=50_000)["start"]["unexplained"] == 0
    is_sound(drawn.graph)


def steps(ends: tuple[int, ...]) -> Drawn:
    """In each step ``b`` starts 204 us from its start; ``far`` ends at a time from there."""
    run = Tiny()
    for n, end in enumerate(ends):
        base = 1000 * n
        run.step(0, n + 1, base, 900)
        run.kernel(0, base + 5, 5, name=f"a{n}", launch_ns=at(base))
        run.kernel(0, base + 10, end - 10, name="far", stream=20, launch_ns=at(base + 1))
        run.kernel(0, base + 204, 6, name="b", launch_ns=at(base + 20))
        run.kernel(0, base + 400, 6, name=f"c{n}", launch_ns=at(base + 300))
    return Drawn(run)


def test_a_wait_that_one_step_shows_is_there_in_the_others() -> None:
    drawn = steps((200, 100, 150))
    kinds = [EDGES[kind] for kind in drawn.graph.edge_kind.tolist()]
    assert kinds.count("inferred_wait") == 1
    assert kinds.count("latent_wait") == 2
    is_sound(drawn.graph)


def test_a_wait_that_another_step_contradicts_was_chance() -> None:
    kinds = [EDGES[kind] for kind in steps((200, 100, 250)).graph.edge_kind.tolist()]
    assert "inferred_wait" not in kinds
    assert "latent_wait" not in kinds


def test_a_library_may_take_another_kernel_for_the_same_place() -> None:
    """Of two gemms one waits for ``far``: in each step another, by the numbers of tokens."""
    run = Tiny()
    for n, (first, second) in enumerate(("xy", "yx", "xx", "yy") * 2):
        base = 1000 * n
        run.step(0, n + 1, base, 900)
        run.kernel(0, base + 5, 5, name=first, launch_ns=at(base))
        run.kernel(0, base + 12, 188, name="far", stream=20, launch_ns=at(base + 1))
        run.kernel(0, base + 204, 6, name=second, launch_ns=at(base + 20))
    kinds = [EDGES[kind] for kind in Drawn(run).graph.edge_kind.tolist()]
    assert kinds.count("inferred_wait") == 8


def test_a_place_behind_a_collective_is_the_same_however_much_came_before_it() -> None:
    """Each step writes as many tokens as its text has, asks for each, then shares the reward."""
    run = Tiny()
    for n, tokens in enumerate((3, 1, 2)):
        base = 1000 * n
        run.step(0, n + 1, base, 900)
        for token in range(tokens):
            run.copy(0, base + 10 + 50 * token, 2, kind="DtoH", size=4, launch_ns=at(base + token))
        run.collective(0, "all_gather", base + 200, 300, launch_ns=at(base + 190))
        run.copy(0, base + 504, 2, kind="DtoH", size=4, launch_ns=at(base + 195))
    kinds = [EDGES[kind] for kind in Drawn(run).graph.edge_kind.tolist()]
    assert kinds.count("inferred_wait") == 3


def tables_in(part: RankTrace) -> dict[str, Rows]:
    return {table.name: table.rows(part.columns[table.name]) for table in TABLES}


def test_a_run_has_the_graph_that_its_files_have() -> None:
    folder = Path(__file__).parents[2] / "traces/p2p_copies/hypercube-reconstructed"
    run = read([folder], workers=1)
    [(_, part), *_] = read_each({Path(run.ranks["file"][0]): (0, "assumed")}, 1)
    assert isinstance(part, RankTrace)
    one, other = device_graph(tables_in(part)), device_graph(rank_tables(run, 0))
    assert one.node_time_ns.size > 0
    for name in ("node_time_ns", "node_row", "edge_from", "edge_to", "edge_lag_ns"):
        assert np.array_equal(getattr(one, name), getattr(other, name))


def test_a_collective_waits_for_the_stream_that_was_current_when_it_was_called() -> None:
    run = Tiny()
    run.kernel(0, 10, 90, name="a", launch_ns=at(0))
    run.copy(0, 20, 85, kind="HtoD", size=4, stream=31, launch_ns=at(10))  # a loader's
    run.collective(0, "all_reduce", 110, 50, launch_ns=at(20))
    run.kernel(0, 100, 100, name="later", launch_ns=at(30))
    drawn = Drawn(run)
    reduced = "ncclDevKernel_all_reduce"
    assert drawn.kinds(reduced) == {f">{reduced}": "launch", "a.": "collective!"}
    is_sound(drawn.graph)


def test_a_collective_called_under_a_label_waits_for_the_stream_of_that_label() -> None:
    """FSDP2 copies into and gathers from streams of its own, labelled."""
    run = Tiny()
    run.step(0, 0, 0, 1000)
    for n, start in enumerate((0, 300)):
        run.step(0, 0, start + 2, 20, label="gather")
        run.kernel(0, start + 10, 90, name=f"mm{n}", launch_ns=at(start))
        run.kernel(0, start + 10, 30, name=f"copy in{n}", stream=31, launch_ns=at(start + 4))
        run.kernel(0, start + 100, 90, name=f"mm'{n}", launch_ns=at(start + 30))
    run.collective(0, "all_gather", 343, 50, launch_ns=at(310))
    drawn = Drawn(run)
    assert drawn.into("ncclDevKernel_all_gather")["copy in1."] == ("collective!", 3)
    assert set(drawn.into("ncclDevKernel_all_gather")) == {
        ">ncclDevKernel_all_gather",
        "copy in1.",
    }
    is_sound(drawn.graph)


def test_a_collective_on_the_callers_own_stream_has_its_place_in_it() -> None:
    run = Tiny()
    run.kernel(0, 10, 90, name="a", launch_ns=at(0))
    run.collective(0, "all_reduce", 101, 50, stream=7, launch_ns=at(20))
    assert Drawn(run).kinds("ncclDevKernel_all_reduce") == {
        ">ncclDevKernel_all_reduce": "launch",
        "a.": "stream!",
    }


@pytest.mark.parametrize(
    ("recorded_us", "waited_us", "waits"),
    [
        (25, 40, True),
        (25, 190, False),  # so much later that may be for what was called before
        (45, 40, False),  # not behind the record of its end
    ],
)
def test_what_waits_at_once_for_a_collective_does_so_whenever_it_is_launched(
    recorded_us: float, waited_us: float, waits: bool
) -> None:
    run = Tiny()
    run.kernel(0, 10, 90, name="a", launch_ns=at(0))
    run.collective(0, "all_reduce", 110, 50, launch_ns=at(20))
    run.synchronisation(0, "Event Record", recorded_us)
    run.synchronisation(0, "Stream Wait Event", waited_us)
    run.kernel(0, 300, 10, name="b", launch_ns=at(295))
    drawn = Drawn(run)
    edges = drawn.kinds("b")
    assert edges.get("ncclDevKernel_all_reduce.") == ("collective" if waits else None)
    is_sound(drawn.graph)


@pytest.mark.parametrize(
    ("ahead", "op", "waits"),
    [
        (True, "all_gather", False),  # the wait is for what was prefetched
        (True, "reduce_scatter", True),
        (False, "all_gather", True),
    ],
)
def test_a_wait_behind_a_collective_can_be_for_an_earlier_one_of_its_kind(
    ahead: bool, op: str, waits: bool
) -> None:
    run = Tiny()
    run.kernel(0, 0, 5, name="pre", launch_ns=at(-10))
    run.collective(0, "all_gather", 10, 30, launch_ns=at(0))
    run.synchronisation(0, "Event Record", 2)
    if not ahead:
        run.synchronisation(0, "Stream Wait Event", 3)
    run.synchronisation(0, "Event Record", 4)
    run.synchronisation(0, "Stream Wait Event", 6)  # the communicator's stream, for what is ready
    run.collective(0, op, 60, 30, launch_ns=at(10), stream=21)
    run.synchronisation(0, "Event Record", 12)
    run.synchronisation(0, "Stream Wait Event", 14)
    run.kernel(0, 300, 10, name="b", launch_ns=at(295))
    edges = Drawn(run).kinds("b")
    assert (edges.get(f"ncclDevKernel_{op}.") == "collective") == waits


def test_a_launch_into_a_full_queue_waits_for_the_last_that_ended() -> None:
    run = two_streams()
    run.kernel(0, 90, 200, name="c", launch_ns=at(8))
    run.blocking_call(0, "cudaLaunchKernel", 20, 72)
    run.kernel(0, 290, 5, name="d", launch_ns=at(20))
    drawn = Drawn(run)
    assert drawn.into("cudaLaunchKernel)") == {
        ">d": ("call", 20),
        "a.": ("resume!", 2),
    }
    is_sound(drawn.graph)


def two_streams() -> Tiny:
    run = Tiny()
    run.kernel(0, 10, 80, name="a", launch_ns=at(0))
    run.kernel(0, 10, 180, name="b", stream=20, launch_ns=at(5))
    return run


@pytest.mark.parametrize("name", ["cudaDeviceSynchronize", "cuCtxSynchronize", "cudaFree"])
def test_the_host_waits_for_every_stream(name: str) -> None:
    run = two_streams()
    run.blocking_call(0, name, 20, 178)
    run.kernel(0, 210, 5, name="c", launch_ns=at(203))
    drawn = Drawn(run)
    assert drawn.into(f"{name})") == {
        f"{name}(": ("call", 20),
        "a.": ("resume", 8),
        "b.": ("resume!", 8),
    }
    assert drawn.into(">c") == {f"{name})": ("host!", 5)}
    assert explained(drawn.graph, 8_000)["resume"] == {"resume": 1, "unexplained": 0, "first": 0}
    is_sound(drawn.graph)


def test_the_host_waits_for_the_stream_that_is_known() -> None:
    run = two_streams()
    run.blocking_call(0, "cudaStreamSynchronize", 20, 78, device="cuda:0", stream=7)
    assert set(Drawn(run).kinds("cudaStreamSynchronize)")) == {"cudaStreamSynchronize(", "a."}


def test_a_stream_is_synchronised_with_what_it_was_told_to_wait_for() -> None:
    """As a barrier does: its stream waits for the collective, and the host for its stream."""
    run = Tiny()
    run.kernel(0, 5, 5, name="a", launch_ns=at(0))
    run.kernel(0, 12, 85, name="barrier", kind="communication", stream=20, launch_ns=at(2))
    told = {"stream": 7, "awaited_stream": 20, "recorded_ns": at(4)}
    run.synchronisation(0, "Stream Wait Event", 6, **told)
    run.kernel(0, 120, 20, name="other", stream=20, launch_ns=at(8))  # behind the event
    run.blocking_call(0, "cudaStreamSynchronize", 10, 90, device="cuda:0", stream=7)
    drawn = Drawn(run)
    assert drawn.kinds("cudaStreamSynchronize)") == {
        "cudaStreamSynchronize(": "call",
        "a.": "resume",
        "barrier.": "resume!",
    }
    is_sound(drawn.graph)


def test_the_host_waits_for_what_ran_before_an_event() -> None:
    run = Tiny()
    run.kernel(0, 10, 80, name="a", launch_ns=at(0))
    run.kernel(0, 91, 20, name="later", launch_ns=at(5))
    run.blocking_call(0, "cudaEventSynchronize", 20, 78, device="cuda:0", stream=7, correlation=3)
    run.synchronisation(0, "Event Sync", 20, awaited_stream=7, correlation=3, recorded_ns=at(3))
    assert set(Drawn(run).kinds("cudaEventSynchronize)")) == {"cudaEventSynchronize(", "a."}


def test_an_event_of_which_nothing_is_known_is_in_what_has_ended() -> None:
    run = Tiny()
    run.kernel(0, 10, 80, name="a", launch_ns=at(0))
    run.kernel(0, 91, 20, name="later", launch_ns=at(5))
    run.blocking_call(0, "cudaEventSynchronize", 20, 78)
    assert set(Drawn(run).kinds("cudaEventSynchronize)")) == {"cudaEventSynchronize(", "a."}


def test_a_copy_to_pageable_memory_waits_for_all_that_ended_before_it() -> None:
    run = two_streams()
    run.copy(0, 192, 4, kind="DtoH", size=4, memory="pageable", launch_ns=at(20))
    run.kernel(0, 191, 6, name="d", stream=31, launch_ns=at(18))
    run.blocking_call(0, "cudaMemcpyAsync", 20, 185)
    drawn = Drawn(run)
    assert drawn.into("cudaMemcpyAsync)") == {
        ">DtoH": ("call", 20),
        "b.": ("resume", 9),
        "DtoH.": ("resume!", 9),  # the last that its stream had been given; d ended later
    }
    is_sound(drawn.graph)


def test_a_copy_to_pageable_memory_from_which_the_host_returns_is_not_waited_for() -> None:
    """What synchronises behind it waits for it; its end is no earlier than it was measured."""
    run = two_streams()
    run.copy(0, 192, 4, kind="DtoH", size=4, memory="pageable", launch_ns=at(20))
    run.blocking_call(0, "cudaMemcpyAsync", 20, 5)
    run.blocking_call(0, "cudaStreamSynchronize", 26, 175)
    drawn = Drawn(run)
    assert set(drawn.kinds("cudaStreamSynchronize)")) >= {"cudaStreamSynchronize(", "DtoH."}
    assert "cudaMemcpyAsync)" not in drawn.names
    assert (np.diff(drawn.graph.node_time_ns) >= 0).all()
    is_sound(drawn.graph)


def test_a_copy_from_pageable_memory_is_fed_by_the_host() -> None:
    run = two_streams()
    copy = {"source": "host", "destination": "cuda:0", "memory": "pageable"}
    run.copy(0, 91, 400, kind="HtoD", size=1 << 22, launch_ns=at(20), **copy)
    run.blocking_call(0, "cudaMemcpyAsync", 20, 380)
    assert Drawn(run).into("cudaMemcpyAsync)") == {
        ">HtoD": ("call", 20),
        "HtoD": ("resume!", 309),
    }


def test_an_asynchronous_copy_blocks_nobody() -> None:
    run = two_streams()
    run.copy(0, 91, 4, kind="DtoH", size=4, memory="pinned", launch_ns=at(20))
    run.blocking_call(0, "cudaMemcpyAsync", 20, 72)  # by chance
    assert "resume" not in {NODES[kind] for kind in Drawn(run).graph.node_kind}


def test_an_allocation_that_ends_with_the_gpus_work_has_waited_for_it() -> None:
    run = two_streams()
    run.blocking_call(0, "cudaMalloc", 20, 183)
    run.blocking_call(0, "cudaMalloc", 230, 183)
    drawn = Drawn(run)
    assert drawn.into("cudaMalloc)")["b."] == ("resume!", 13)
    assert drawn.names.count("cudaMalloc)") == 1


def test_threads_take_turns() -> None:
    """Autograd's thread launches the backward pass, while the one that called it waits."""
    run = Tiny()
    for n in range(12):
        thread = 2 if 4 <= n < 8 else 1
        run.kernel(0, 10 * n + 5, 2, name=f"k{n}", launch_ns=at(10 * n), thread=thread)
    run.kernel(0, 200, 2, name="beside", launch_ns=at(105), thread=3, stream=9)
    drawn = Drawn(run)
    assert drawn.into(">k4") == {">k3": ("handoff!", 10)}
    assert drawn.into(">k8") == {">k7": ("handoff!", 10), ">k3": ("host", 10)}
    assert drawn.kinds(">k11") == {">k10": "host!"}
    is_sound(drawn.graph)


def test_a_cuda_graph_is_launched_once() -> None:
    run = Tiny()
    run.kernel(0, 10, 5, name="a", launch_ns=at(0), correlation=1)
    run.kernel(0, 16, 5, name="b", launch_ns=at(0), correlation=1)
    run.kernel(0, 16, 5, name="c", stream=20, launch_ns=at(0), correlation=1)
    drawn = Drawn(run)
    assert [name for name in drawn.names if name.startswith(">")] == [">a"]
    assert set(drawn.kinds("c")) >= {">a"}
    is_sound(drawn.graph)


def test_times_rounded_to_microseconds_keep_their_order() -> None:
    run = Tiny()
    run.kernel(0, 10, 5, name="a", launch_ns=at(0))
    run.kernel(0, 14, 0, name="b", launch_ns=at(1))  # a ends at 15
    run.kernel(0, 14, 3, name="c", launch_ns=at(2))
    run.kernel(0, 15, 30, name="overlaps", launch_ns=at(3))
    run.kernel(0, 20, 5, name="d", launch_ns=at(4))
    drawn = Drawn(run)
    assert drawn.into("b")["a."] == ("stream!", -1)
    assert drawn.kinds("d") == {">d": "launch", "c.": "stream!"}
    is_sound(drawn.graph)


@pytest.mark.parametrize(("late_us", "known"), [(0.001, True), (1, True), (3, False)])
def test_an_end_that_rounding_puts_behind_the_collective_is_before_it(
    late_us: float, known: bool
) -> None:
    run = Tiny()
    run.kernel(0, 10, 90 + late_us, name="a", launch_ns=at(0))
    run.collective(0, "all_reduce", 100, 50, launch_ns=at(20))
    drawn = Drawn(run)
    assert ("a." in drawn.kinds("ncclDevKernel_all_reduce")) == known
    is_sound(drawn.graph)


@pytest.mark.parametrize(("late_us", "known"), [(0.002, True), (0.5, False)])
def test_nor_do_last_digits_hide_what_a_start_waited_for(late_us: float, known: bool) -> None:
    run = Tiny()
    run.kernel(0, 5, 5, name="a", launch_ns=at(0))
    run.kernel(0, 10, 90 + late_us, name="far", stream=20, launch_ns=at(1))
    run.kernel(0, 100, 6, name="b", launch_ns=at(20))
    drawn = Drawn(run)
    assert ("far." in drawn.kinds("b")) == known
    is_sound(drawn.graph)


def test_a_wait_that_rounding_ends_early_is_one_for_what_ran() -> None:
    run = Tiny()
    run.kernel(0, 10, 90.001, name="a", launch_ns=at(0))
    run.blocking_call(0, "cudaDeviceSynchronize", 20, 80)
    run.kernel(0, 110, 5, name="b", launch_ns=at(100))
    drawn = Drawn(run)
    assert drawn.into("cudaDeviceSynchronize)")["a."] == ("resume!", -0.001)
    is_sound(drawn.graph)


def test_a_call_that_rounding_begins_early_is_behind_the_wait() -> None:
    run = Tiny()
    run.kernel(0, 10, 90, name="a", launch_ns=at(0))
    run.blocking_call(0, "cudaDeviceSynchronize", 20, 80.001)
    run.kernel(0, 110, 5, name="b", launch_ns=at(100))
    drawn = Drawn(run)
    assert drawn.into(">b") == {"cudaDeviceSynchronize)": ("host!", -0.001)}
    is_sound(drawn.graph)


def test_work_without_a_launch_follows_its_stream() -> None:
    run = Tiny()
    run.kernel(0, 10, 5, name="a", launch_ns=None, thread=None)
    run.kernel(0, 16, 5, name="b", launch_ns=None, thread=None)
    drawn = Drawn(run)
    assert drawn.into("a") == {}
    assert drawn.into("b") == {"a.": ("stream!", 1)}
    assert explained(drawn.graph)["start"] == {"stream": 1, "unexplained": 0, "first": 1}


def test_a_shorter_collective_lets_the_host_go_on() -> None:
    run = Tiny()
    run.kernel(0, 10, 90, name="a", launch_ns=at(0))
    run.collective(0, "all_reduce", 102, 800, launch_ns=at(20))
    run.kernel(0, 904, 10, name="b", launch_ns=at(30))
    run.copy(0, 916, 2, kind="DtoH", size=4, memory="pageable", launch_ns=at(40))
    run.blocking_call(0, "cudaMemcpyAsync", 40, 886)
    run.kernel(0, 940, 10, name="c", launch_ns=at(933))
    drawn = Drawn(run)
    graph = drawn.graph
    shorter = graph.edge_lag_ns.copy()
    (edge,) = np.flatnonzero(graph.edge_to == drawn.names.index("ncclDevKernel_all_reduce."))
    shorter[edge] -= 700_000
    gained = graph.node_time_ns - np.asarray(replay(graph, shorter))
    assert gained[drawn.names.index("c.")] == 700_000


def test_the_table_of_what_is_explained() -> None:
    run = two_streams()
    run.kernel(0, 91, 5, name="c", launch_ns=at(6))
    run.blocking_call(0, "cudaDeviceSynchronize", 20, 178)
    graph = device_graph(rank_tables(run.trace(), 0))
    assert row(graph) == (3, 2, 1, 1, 1, 0, 0, 1)


def test_a_rank_without_a_gpu_has_an_empty_graph() -> None:
    graph = Drawn(Tiny(backend="gloo")).graph
    assert graph.node_time_ns.size == graph.edge_to.size == 0
    assert explained(graph)["start"] == {"unexplained": 0, "first": 0}


@pytest.mark.parametrize("seed", range(20))
def test_any_graph_gives_every_measured_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    run, called = Tiny(), 0.0
    free = dict.fromkeys((7, 20, 31), 0.0)
    for _ in range(60):
        called += rng.integers(0, 15)
        stream, thread = int(rng.choice([*free])), int(rng.integers(1, 3))
        start = max(called + rng.integers(-1, 9), free[stream] + rng.choice([-1, 0, 0, 1, 30]))
        free[stream] = start + rng.integers(0, 40)
        what = {"stream": stream, "launch_ns": at(called), "thread": thread}
        if rng.random() < 0.2:
            run.copy(0, start, free[stream] - start, kind="DtoH", size=4, memory="pageable", **what)
            run.blocking_call(0, "cudaMemcpyAsync", called, rng.integers(0, 99), thread=thread)
        else:
            kind = "communication" if stream == 20 else "compute"
            run.kernel(0, start, free[stream] - start, kind=kind, **what)
        if rng.random() < 0.1:
            run.blocking_call(0, "cudaDeviceSynchronize", called, rng.integers(0, 99))
        if rng.random() < 0.1 and seed % 2:
            its = {"stream": stream, "awaited_stream": 7, "recorded_ns": at(called - 3)}
            run.synchronisation(0, "Stream Wait Event", called, **its)
    is_sound(device_graph(rank_tables(run.trace(), 0)))


def test_real_traces(real_traces: Path) -> None:
    files = [real_traces / f"{name}.json.gz" for name in ("hta_a100_resnet_nccl_metadata",)]
    for _, part in read_each(dict.fromkeys(files, (0, "assumed")), 1):
        assert isinstance(part, RankTrace)
        graph = device_graph(tables_in(part))
        is_sound(graph)
        starts = explained(graph)["start"]
        assert starts["unexplained"] < 0.01 * sum(starts.values())
