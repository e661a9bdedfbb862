"""Kernels are compared by the shapes of the operators that launched them, where these are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commtrace.comparing.shapes import shapes
from commtrace.comparison import Comparison, compare
from commtrace.reader.json import operator_inputs
from commtrace.run import load
from commtrace.table import rows

HOST, STREAM = 42, 7


def event(category: str, name: str, at: float, long: float, **more: Any) -> dict[str, Any]:
    its = {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": HOST,
        "tid": HOST,
        "ts": at,
        "dur": long,
    }
    return {**its, **more}


def step(number: int, dims: Any, long: float) -> list[dict[str, Any]]:
    """A step of 1 ms: ``linear`` calls ``addmm``, which launches a gemm; then one by nobody."""
    at, first = 1_000.0 * number, 2 * number + 1
    shaped = {} if dims is None else {"args": {"Input Dims": dims}}
    kernel = {"pid": 0, "tid": STREAM}
    args = {"device": 0, "stream": STREAM}
    return [
        event("user_annotation", f"ProfilerStep#{number}", at, 1_000),
        event("cpu_op", "aten::linear", at + 10, 50, args={"Input Dims": [[1, 1]]}),
        event("cpu_op", "aten::addmm", at + 20, 30, **shaped),
        event("cuda_runtime", "cudaLaunchKernel", at + 25, 5, args={"correlation": first}),
        event("cuda_runtime", "cudaLaunchKernel", at + 70, 5, args={"correlation": first + 1}),
        event("kernel", "gemm", at + 100, long, args={**args, "correlation": first}, **kernel),
        event("kernel", "fill", at + 800, 9, args={**args, "correlation": first + 1}, **kernel),
    ]


def written(folder: Path, dims: Any, long: float = 100) -> Path:
    folder.mkdir()
    events = [one for number in range(6) for one in step(number, dims, long)]
    trace = {"distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}
    (folder / "rank0.json").write_text(json.dumps(trace))
    return folder


def work(its: Comparison) -> dict[str, dict[str, Any]]:
    return {row["kernel"]: row for row in rows(its.kernels)}


def test_a_kernel_that_got_other_shapes_is_one_row_that_says_so(tmp_path: Path) -> None:
    base = written(tmp_path / "base", [[64, 32], [32], []])
    its = compare(base, written(tmp_path / "more", [[128, 32], [32], []], 250))
    found = work(its)
    assert found["gemm"]["shape"] == "[[128,32],[32],[]]"
    assert found["gemm"]["base_shape"] == "[[64,32],[32],[]]"
    assert (found["gemm"]["base_ns"], found["gemm"]["candidate_ns"]) == (100_000, 250_000)
    assert found["fill"]["shape"] is None
    assert "gemm 64×32, 32 → 128×32, 32" in its._repr_html_()


def test_equal_shapes_are_no_change(tmp_path: Path) -> None:
    sides = [written(tmp_path / name, [[64, 32]]) for name in ("base", "same")]
    gemm = work(compare(*sides))["gemm"]
    assert (gemm["shape"], gemm["base_shape"]) == ("[[64,32]]", None)


def test_where_one_side_has_no_shapes_names_are_compared(tmp_path: Path) -> None:
    base = written(tmp_path / "base", None)
    text = (base / "rank0.json").read_text().replace("Input Dims", "Else")
    (base / "rank0.json").write_text(text)
    found = work(compare(base, written(tmp_path / "shaped", [[64, 32]])))
    assert found["gemm"]["shape"] is None
    assert (found["gemm"]["base_count"], found["gemm"]["candidate_count"]) == (1, 1)


def test_operators_of_a_cpu_have_their_own(tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    its = [one for one in step(0, [[64, 32]], 1) if one["cat"] in ("user_annotation", "cpu_op")]
    file.write_text(json.dumps({"traceEvents": its}))
    assert shapes(load(file).measures).ops.tolist() == ["[[1,1]]"]


def test_a_file_that_is_gone_costs_the_shapes_only(tmp_path: Path) -> None:
    sides = [load(written(tmp_path / name, [[64, 32]])) for name in ("base", "same")]
    (tmp_path / "base" / "rank0.json").unlink()
    its = compare(*sides)
    assert work(its)["gemm"]["shape"] is None
    (note,) = [note for note in its.notes if note.code == "unknown-shapes"]
    assert "base/rank0.json: cannot be read" in note.message


@pytest.mark.parametrize(
    ("dims", "shape"),
    [
        ([[2, 3], []], "[[2,3],[]]"),
        ([[[2, 3], [4]]], "[[[2,3],[4]]]"),
        ([[], []], None),
        ("<script>", None),
        ([["<b>"]], None),
        ([[True]], None),
        ([[-2, 3]], None),
        ([[10**400]], None),
        ({"a": 1}, None),
        (None, None),
    ],
)
def test_only_shapes_are_believed(dims: Any, shape: str | None, tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    its = event("cpu_op", "aten::mm", 1.5, 2, args={"Input Dims": dims})
    none = [event("cpu_op", "aten::mm", 1.5, 2), event("kernel", "k", 1, 2), {**its, "ts": "soon"}]
    file.write_text(json.dumps({"baseTimeNanoseconds": 7, "traceEvents": [its, *none]}))
    found = operator_inputs(file)
    assert found.shapes.decoded() == ([] if shape is None else [shape])
    if shape is not None:
        assert found.start_ns.tolist() == [1_507]


@pytest.mark.parametrize(
    ("types", "text"),
    [(["float", "Scalar"], '["float","Scalar"]'), ("<b>", "null"), ([1], "null"), (None, "null")],
)
def test_only_types_are_believed(types: Any, text: str, tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    its = event("cpu_op", "aten::mm", 1, 2, args={"Input Dims": [[2], []], "Input type": types})
    file.write_text(json.dumps({"traceEvents": [its]}))
    found = operator_inputs(file)
    assert (found.name.decoded(), found.types.decoded()) == (["aten::mm"], [text])


def test_what_nobody_reads_costs_no_operator(tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    its = event("cpu_op", "aten::mm", 1, 2, args={"Input Dims": [[2, 3]]})
    unread = [event(cat, "nccl:all_reduce", 1, 2) for cat in ("gpu_user_annotation", "overhead")]
    file.write_text(json.dumps({"traceEvents": [*unread, its]}))
    assert operator_inputs(file).name.decoded() == ["aten::mm"]


def test_shapes_by_their_name_before_2021_are_read(tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    its = event("cpu_op", "aten::mm", 1, 2, args={"Input dims": [[2, 3]]})
    file.write_text(json.dumps({"traceEvents": [its]}))
    assert operator_inputs(file).shapes.decoded() == ["[[2,3]]"]
