"""StragglerAnalysis' numbers from our graph: of a job small enough to work out, and theirs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks.straggler_analysis.__main__ import compare, main, published, summary
from benchmarks.straggler_analysis.job import LAUNCH, job_of, read
from benchmarks.straggler_analysis.slowdowns import slowdowns
from commtrace.causal.replay.graph import replay
from commtrace.errors import TraceError


def step(number: int, late: int) -> Iterator[dict[str, Any]]:
    """Two stages × two data ranks × two microbatches, worked out by hand, in ms.

    Forward takes 10, backward 20, communication 1, and 10 at the beginning; each of data rank
    1's forwards on the last stage ``late`` more. The optimizer is launched 3 late.
    """
    slowest = 2 * late
    for data_rank, one in ((0, 0), (1, late)):
        two = 2 * one
        end = [
            ("grads-reduce-scatter", 0, 103 + two, 104 + slowest),
            ("optimizer-clip-main-grad", 0, 104 + slowest, 105 + slowest),
            ("optimizer", 0, 108 + slowest, 113 + slowest),
        ]
        first = [
            ("params-all-gather", 0, 0, 10),
            ("forward-compute", 0, 10, 20),
            ("forward-send", 0, 20, 21),
            ("forward-compute", 1, 20, 30),
            ("forward-send", 1, 30, 32 + one),
            ("backward-recv", 0, 20, 52 + one),
            ("backward-compute", 0, 52 + one, 72 + one),
            ("backward-recv", 1, 72 + one, 82 + two),
            ("backward-compute", 1, 82 + two, 102 + two),
            ("embedding-grads-all-reduce", 0, 102 + two, 103 + two),
            *end,
        ]
        last = [
            ("params-all-gather", 0, 0, 10),
            ("forward-recv", 0, 0, 21),
            ("forward-compute", 0, 21, 31 + one),
            ("forward-recv", 1, 31 + one, 32 + one),
            ("backward-compute", 0, 31 + one, 51 + one),
            ("backward-send", 0, 51 + one, 52 + one),
            ("forward-compute", 1, 51 + one, 61 + two),
            ("backward-compute", 1, 61 + two, 81 + two),
            ("backward-send", 1, 81 + two, 82 + two),
            ("embedding-grads-all-reduce", 0, 81 + two, 103 + two),
            *end,
        ]
        for stage, operations in enumerate((first, last)):
            for op, seq_id, begun, ended in operations:
                of = {"step": number, "dp_rank": data_rank, "stage": stage, "mc": 0}
                at = {"start_ts": begun / 1e3, "duration": (ended - begun) / 1e3}
                yield {**of, "optype": op, "seq_id": seq_id, **at}


@pytest.fixture
def table() -> pd.DataFrame:
    return pd.DataFrame([*step(7, late=0), *step(9, late=10)])


def test_every_time_is_replayed(table: pd.DataFrame) -> None:
    graph = job_of(table).graph
    assert replay(graph, graph.lag_ns[:, None])[:, 0].tolist() == graph.time_ns.tolist()


def test_who_waits_for_whom(table: pd.DataFrame) -> None:
    job = job_of(table)
    name = job.operations["optype"] + " " + job.operations["seq_id"].astype(str)
    last = job.operations.index[job.operations["stage"] == 1][:12]  # of one worker
    launches = job.graph.kind == LAUNCH
    waits = {
        name[row]: {
            name[end - len(name)]
            for end in job.graph.source[launches & (job.graph.target == row)]
            if end < 2 * len(name)  # not the step's beginning
        }
        for row in last
    }
    assert waits == {
        "params-all-gather 0": set(),
        "forward-recv 0": set(),
        "forward-compute 0": {"params-all-gather 0", "forward-recv 0"},
        "forward-recv 1": {"forward-compute 0"},
        "backward-compute 0": {"forward-compute 0"},
        "backward-send 0": {"backward-compute 0"},
        "forward-compute 1": {"backward-compute 0", "forward-recv 1"},
        "backward-compute 1": {"forward-compute 1"},
        "backward-send 1": {"backward-compute 1"},
        "embedding-grads-all-reduce 0": {"backward-compute 1"},
        "grads-reduce-scatter 0": {"embedding-grads-all-reduce 0"},
        "optimizer-clip-main-grad 0": {"grads-reduce-scatter 0"},
    }


def test_slowdowns_are_those_worked_out(table: pd.DataFrame) -> None:
    numbers = slowdowns(job_of(table))
    assert numbers["step_t_base", "9"] == pytest.approx(0.133)
    assert numbers["launch_slowdown",] == pytest.approx(123 / 120)
    # 80 ms and three forwards, of 11.25 ms in the mean, make the shortest step.
    ideal = 80 + 3 * 11.25
    assert numbers["step_t_noblk", "9"] == pytest.approx(ideal / 1e3)
    assert numbers["blocking_slowdown",] == pytest.approx(120 / ideal)
    assert numbers["blocking_step_slowdown", "7"] == pytest.approx(110 / ideal)
    parts = {
        ("dp_rank", "0"): ideal,  # rank 1 is not faster than ideal
        ("dp_rank", "1"): (ideal + 130) / 2,  # in step 7 its forwards are shorter
        ("stage", "0"): 80 + 10 + 2 * 11.25,
        ("stage", "1"): 80 + 11.25 + 2 * 15,
        ("optype", "forward-compute"): 120,
        ("optype", "backward-compute"): ideal,
        ("optype", "forward-pp-comm"): ideal,
    }
    for (kind, part), expected in parts.items():
        found = numbers[f"blocking_decompose_by_{kind}", part]
        assert found == pytest.approx(expected / ideal), (kind, part)
    by_stage = "blocking_decompose_by_stage_per_step"
    assert numbers[by_stage, "9", "1"] == pytest.approx((80 + 11.25 + 40) / ideal)


def test_rows_may_come_in_any_order(table: pd.DataFrame) -> None:
    shuffled = table.sample(frac=1, random_state=1)
    assert slowdowns(job_of(shuffled)) == pytest.approx(slowdowns(job_of(table)))


@pytest.mark.parametrize("op", ["forward-recv", "grads-reduce-scatter", "forward-compute"])
def test_a_missing_operation_is_named(table: pd.DataFrame, op: str) -> None:
    gone = table.index[table["optype"] == op][0]
    with pytest.raises(TraceError, match=r"step 7, data rank [01], stage [01]: (for|grad)"):
        job_of(table.drop(index=gone))


def test_other_schedules_are_refused(table: pd.DataFrame) -> None:
    with pytest.raises(TraceError, match="interleaved"):
        job_of(table.assign(mc=1))
    with pytest.raises(TraceError, match="separate-grads-all-reduce: not modelled"):
        job_of(table.replace({"optype": {"optimizer": "separate-grads-all-reduce"}}))


def test_what_was_published_is_compared_number_by_number(tmp_path: Path) -> None:
    result = {
        "job_meta": {"dp_size": 2},
        "step_t_base": {"7": 2.0, "9": 4.0},
        "launch_slowdown": 1.0,
        "launch_decompose_by_stage": None,
    }
    (tmp_path / "result-x.json").write_text(json.dumps(result))
    theirs = published(tmp_path)
    both = compare({**theirs, ("step_t_base", "9"): 4.004}, theirs)
    assert both["difference"].tolist() == pytest.approx([0, 0.001, 0])
    assert "step_t_base            2        3.0     3.002          0.100000%" in summary(both)
    with pytest.raises(TraceError, match="not computed here: step_t_base 9"):
        compare({("launch_slowdown",): 1.0, ("step_t_base", "7"): 2.0}, theirs)


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["straggler_analysis", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"no files trace-\*\.parquet; name a folder"):
        main()
    (tmp_path / "trace-x.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SystemExit, match="pip install pyarrow"):
        main()


def test_the_published_numbers(real_traces: Path) -> None:
    pytest.importorskip("pyarrow")
    path = real_traces / "straggler_analysis_ST"
    both = compare(slowdowns(job_of(read(path))), published(path))
    assert len(both) == 723
    assert both["difference"].max() < 1e-6  # times are written to 0.2 µs
