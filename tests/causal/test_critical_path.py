"""The critical path sums to every step, to the nanosecond; replay gives every time again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import commtrace as ct
from commtrace.causal.critical_path import critical_path, critical_pieces, path_with
from commtrace.causal.edits.run_edits import as_measured, even, step_ends
from commtrace.causal.replay.graph import changed, replay
from commtrace.causal.run.run_graph import run_graph
from commtrace.diagnosis import CannotLook
from commtrace.measures import Measures
from commtrace.synthetic import BASE_NS, Tiny

Make = Callable[..., Measures]
MS = 1_000_000
RECORDED = sorted(
    folder.relative_to(Path(__file__).parents[2] / "traces").as_posix()
    for folder in (Path(__file__).parents[2] / "traces").glob("*/gloo-4")
)


@pytest.mark.parametrize("folder", RECORDED)
def test_recordings_are_replayed_exactly_and_their_paths_sum_to_their_steps(
    recorded: Path, folder: str
) -> None:
    run = ct.load(recorded / folder, workers=1).measures
    its = run_graph(run)
    again = replay(its.graph, its.graph.lag_ns[:, None])[:, 0]
    assert (again == its.graph.time_ns[:]).all()
    path = critical_path(run).frame()
    assert path["time_ns"].sum() == its.step_ns.sum()
    by_step = path.groupby("step")["time_ns"].sum()
    assert by_step.tolist() == [time for time in its.step_ns.tolist() if time]
    assert (path["time_ns"] > 0).all()


def test_with_edits_it_sums_to_the_steps_replayed(training: Make) -> None:
    run = training(lambda rank, step: 5_000 + 1_000 * rank, ranks=3)
    lag = changed(as_measured(run), even(run))
    ends = step_ends(run, [lag])[:, 0]
    steps = np.diff(ends, prepend=run_graph(run).begin_ns)
    assert path_with(run, lag).frame().groupby("step")["time_ns"].sum().tolist() == steps.tolist()


def test_the_late_rank_is_on_it_with_what_it_does(training: Make) -> None:
    run = training(
        lambda rank, step: 2_000, ranks=3, sleep_us=lambda rank, step: 6_000 * (rank == 1)
    )
    path = critical_path(run).frame()
    assert set(path[path["kind"].isin(("compute", "host"))]["rank"]) == {1}
    kinds = path.groupby("kind", observed=True)["time_ns"].sum().to_dict()
    assert kinds["compute"] == 6 * 2 * MS
    assert kinds["host"] == pytest.approx(6 * 6 * MS, rel=0.01)
    assert kinds["transfer"] == 6 * MS
    assert kinds["launch"] == 6 * MS // 20
    ops = path[path["kind"].isin(("transfer", "launch"))]["op"]
    assert set(ops) == {"all_reduce"}


def test_a_wait_that_ends_with_its_step_is_no_work(training: Make) -> None:
    run = training(lambda rank, step: 2_000 + 1_000 * rank, tail_us=0)
    kinds = critical_path(run).frame().groupby("kind", observed=True)["time_ns"].sum().to_dict()
    assert kinds == {"compute": 6 * 3 * MS, "launch": 6 * MS // 20, "transfer": 6 * MS}


def test_what_an_edit_shortens_is_made_of_what_it_was(training: Make) -> None:
    run = training(
        lambda rank, step: 2_000 * (1 + rank), sleep_us=lambda rank, step: 2_000 * (1 + rank)
    )
    path = path_with(run, changed(as_measured(run), even(run))).frame()
    own = path[path["kind"].isin(("compute", "host"))].groupby("kind", observed=True)
    compute, host = (own["time_ns"].sum()[kind] for kind in ("compute", "host"))
    assert compute == pytest.approx(6 * 3 * MS, rel=0.02)
    assert host == pytest.approx(6 * 3 * MS, rel=0.02)


def test_a_device_on_which_nothing_runs_computes_nothing() -> None:
    """Work that is launched starts late, and nothing in the trace says what it waited for."""
    run = Tiny(ranks=2)
    for rank in range(2):
        run.step(rank, 0, 0, 1500)
        run.kernel(rank, 20, 80, launch_ns=BASE_NS)
        run.kernel(rank, 700, 300, launch_ns=BASE_NS + 10_000)
        run.collective(rank, "all_reduce", 1000, 500, size=4096, launch_ns=BASE_NS + 20_000)
    trace = run.trace()
    kinds = critical_path(trace).frame().groupby("kind", observed=True)["time_ns"].sum()
    assert kinds["compute"] == 380_000
    assert kinds["idle"] == 600_000
    pieces = critical_pieces(trace).frame()
    idle = pieces[pieces["kind"] == "idle"]
    assert (idle["start_ns"] - BASE_NS).tolist() == [100_000]
    assert (idle["end_ns"] - BASE_NS).tolist() == [700_000]


def test_a_run_that_no_graph_holds_has_none() -> None:
    run = Tiny(1)
    run.kernel(0, 0, 10)
    with pytest.raises(CannotLook):
        critical_path(run.trace())


def test_what_a_device_does_beside_idle_streams_is_communication_not_compute() -> None:
    """The next kernel begins 0.1 ms behind a transfer, and nothing says that it waited for it."""
    run = Tiny(1)
    for step in range(3):
        at = 10_000.0 * step
        run.step(0, step, at, 10_000)
        run.kernel(0, at + 100, 1_900)
        run.collective(0, "all_reduce", at + 2_000, 5_000, size=1 << 20)
        run.kernel(0, at + 7_100, 2_800)
    path = critical_path(run.trace()).frame()
    kinds = path.groupby("kind", observed=True)["time_ns"].sum().to_dict()
    assert kinds["transfer"] == pytest.approx(15 * MS, rel=0.05)
    assert kinds["compute"] == pytest.approx(
        11.3 * MS, rel=0.05
    )  # behind the last transfer nothing counts
    pieces = critical_pieces(run.trace()).frame()
    times = (pieces["end_ns"] - pieces["start_ns"]).groupby(pieces["kind"], observed=True).sum()
    assert times.to_dict() == kinds


def test_the_first_step_begins_when_gpus_are_done_with_what_was_before() -> None:
    """Hosts are 9 ms ahead; copies for the first step run beside what they launched before."""
    run = Tiny(2)
    for rank in range(2):
        run.kernel(rank, 500, 9_400)
        run.copy(rank, 1_200, 100, kind="HtoD", size=1 << 20, source="host", stream=25, step=1)
        for step in range(1, 4):
            at, launched = 10_000 * step, BASE_NS + 1_000_000 * step
            run.step(rank, step, 1_000 * step, 1_000)
            run.kernel(rank, at, 7_000, step=step, launch_ns=launched)
            its = {"size": 1 << 20, "step": step, "launch_ns": launched + 1_000}
            run.collective(rank, "all_reduce", at + 7_000, 2_990, **its)
    its = run_graph(run.trace())
    assert its.begin_ns == BASE_NS + 9_900_000
    assert its.step_ns.tolist() == [10_090_000, 10_000_000, 10_000_000]


def test_a_host_waits_for_no_threads_of_gloo_before_its_first_step() -> None:
    """A broadcast that was called before is under way while it computes."""
    run = Tiny(2, backend="gloo")
    call = {"thread": 1, "stream": 50, "size": 1 << 20}
    for rank in range(2):
        run.collective(rank, "broadcast", 500, 9_400, root=0, **call)
        for step in range(1, 4):
            at = 1_000 + 10_000 * (step - 1)
            run.step(rank, step, at, 10_000)
            run.op(rank, at, 8_900)
            run.collective(rank, "all_reduce", at + 8_910, 990, step=step, **call)
            run.gap(rank, at + 8_910, 990)
    its = run_graph(run.trace())
    assert its.begin_ns == BASE_NS + 1_000_000
    assert its.step_ns.tolist() == [10_000_000, 10_000_000, 9_900_000]
