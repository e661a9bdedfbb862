"""What a timeline draws is everything once, on one clock, waiting apart."""

from __future__ import annotations

from commtrace.metrics.run.timeline_events import timeline_events
from commtrace.synthetic import BASE_NS, Tiny


def test_every_event_once_by_lane_and_start() -> None:
    run = Tiny(2)
    for rank, late in ((0, 0), (1, 30)):
        run.kernel(rank, 0, 50, name="gemm")
        run.collective(rank, "all_reduce", 60 + late, 40 - late, size=4)
        run.copy(rank, 10, 5, kind="HtoD", size=8, source="host", destination="cuda:0")
    table = timeline_events(run.trace()).frame()
    assert len(table) == 6, "a communication kernel is its operation"
    first = table[table["rank"] == 0].astype({"kind": object, "name": object})
    assert first[["stream", "kind", "name"]].to_numpy().tolist() == [
        [7, "compute", "gemm"],
        [7, "copy", "HtoD host → cuda:0"],
        [20, "communication", "all_reduce"],
    ]
    assert first["start_ns"].iloc[0] == BASE_NS
    assert table["wait_ns"].tolist() == [0, 0, 30_000, 0, 0, 0]
    assert table["operation"].tolist() == [-1, -1, 0, -1, -1, 0]


def test_operations_that_share_a_kernel_are_drawn_once() -> None:
    run = Tiny(1)
    for _ in range(3):
        run.collective(0, "all_gather", 0, 10, size=4)
    assert len(timeline_events(run.trace())) == 1


def test_operators_beside_a_gpu_are_left_out() -> None:
    with_gpu, without = Tiny(1), Tiny(1, backend="gloo")
    for run in (with_gpu, without):
        run.op(0, 0, 5)
    with_gpu.kernel(0, 10, 5)
    assert set(timeline_events(with_gpu.trace()).coded("device").decoded()) == {"cuda:0"}
    assert set(timeline_events(without.trace()).coded("device").decoded()) == {"cpu"}


def test_what_an_operator_waits_for_within_it_is_no_compute() -> None:
    """A DTensor's addition, which waits for its collective twice; another thread computes."""
    run = Tiny(1, backend="gloo")
    run.op(0, 0, 100, name="aten::add")
    for begin, lasts in ((10, 40), (90, 10)):
        run.op(0, begin, lasts, name="_c10d_functional::wait_tensor", kind="communication")
    run.op(0, 20, 50, name="aten::mm", thread=2)
    table = timeline_events(run.trace()).frame()
    parts = zip(table["stream"], table["start_ns"] - BASE_NS, table["duration_ns"], strict=True)
    assert sorted(parts) == [(1, 0, 10_000), (1, 50_000, 40_000), (2, 20_000, 50_000)]
