from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtrace.arrays import NULL
from commtrace.reader.json.events import Arguments, Scan
from commtrace.reader.json.scan import scan
from commtrace.table import Coded

Json = dict[str, Any]

OLD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {"id": 0, "name": "A100"}
  ],
  "traceEvents": [
  {
    "ph": "X", "cat": "python_function", "name": "train.py(3): <module>", "pid": 9, "tid": 9,
    "ts": 1000, "dur": 900,
    "args": {
      "Python id": 1
    }
  },
  {
    "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9,
    "ts": 1010, "dur": 20,
    "args": {
      "External id": 1
    }
  },
  {
    "ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 9, "tid": 9,
    "ts": 1040, "dur": 9,
    "args": {
      "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 100, "Seq": 7
    }
  },
  {
    "ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9,
    "ts": 1042, "dur": 3,
    "args": {
      "cbid": 211, "correlation": 55
    }
  },
  {
    "ph": "X", "cat": "cuda_runtime", "name": "cudaGetDevice", "pid": 9, "tid": 9,
    "ts": 1046, "dur": 1
  },
  {
    "ph": "s", "id": 55, "pid": 9, "tid": 9, "ts": 1042,
    "cat": "ac2g", "name": "ac2g"
  },
  {
    "ph": "X", "cat": "Kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 20,
    "ts": 1050, "dur": 100,
    "args": {
      "device": 0, "stream": 20, "correlation": 55, "Collective name": "allreduce"
    }
  },
  {
    "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy PtoP (Device -> Device)", "pid": 2, "tid": 7,
    "ts": 1060, "dur": 5,
    "args": {
      "fromDevice": 1, "inDevice": 2, "toDevice": 2, "stream": 7, "correlation": 56, "bytes": 4096
    }
  },
  {
    "ph": "X", "cat": "Memset", "name": "Memset (Device)", "pid": 3, "tid": 8,
    "ts": 1070, "dur": 0,
    "args": {
    }
  },
  {
    "ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 9, "tid": 9,
    "ts": 1000, "dur": 500,
    "args": {
    }
  },
  {
    "ph": "X", "cat": "user_annotation", "name": "nccl:all_reduce", "pid": 9, "tid": 9,
    "ts": 1041, "dur": 7,
    "args": {
      "Input Dims": [[100]]
    }
  },
  {
    "name": "thread_name", "ph": "M", "ts": 1000, "pid": 9, "tid": 9,
    "args": {
      "name": "thread 9 (python)"
    }
  },
  {
    "name": "Record Window End", "ph": "i", "s": "g",
    "pid": "", "tid": "", "ts": 2000
  }
  ],
  "baseTimeNanoseconds": 5,
  "traceName": "a.json"
}
"""


@pytest.mark.parametrize("fast", [True, False])
def test_a_trace_by_eye(tmp_path: Path, fast: bool) -> None:
    (tmp_path / "a.json").write_text(OLD)
    found = scan(tmp_path / "a.json", fast=fast)
    gpu = found.gpu
    assert gpu.category.decoded() == ["kernel", "gpu_memcpy", "gpu_memset"]
    assert gpu.device.tolist() == [0, 2, 3]  # the argument, the device the copy ran on, the pid
    assert gpu.stream.tolist() == [20, 7, 8]
    assert gpu.start_ns.tolist() == [1050005, 1060005, 1070005]
    assert gpu.duration_ns.tolist() == [100000, 5000, 0]
    assert gpu.correlation.tolist() == [55, 56, NULL]
    assert gpu.size_bytes.tolist() == [NULL, 4096, NULL]
    assert gpu.from_device.tolist() == [NULL, 1, NULL]
    assert gpu.to_device.tolist() == [NULL, 2, NULL]
    assert found.launches.correlation.tolist() == [55]
    assert found.launches.thread.tolist() == [9]
    assert found.launches.start_ns.tolist() == [1042005]
    assert found.operators.name.decoded() == []  # what runs on a GPU is not on the CPU
    assert found.annotations.name.decoded() == ["ProfilerStep#3", "nccl:all_reduce"]
    assert [(call.category, call.name, call.gpu_row) for call in found.calls] == [
        ("cpu_op", "record_param_comms", -1),
        ("kernel", "ncclDevKernel_AllReduce", 0),
        ("user_annotation", "nccl:all_reduce", -1),
    ]
    assert found.calls[0].args.seq == 7
    assert found.calls[2].args.dims == [[100]]
    assert found.metadata["traceName"] == "a.json"
    assert found.metadata["deviceProperties"] == [{"id": 0, "name": "A100"}]
    assert found.events == 13
    assert found.notes == ()


def test_operators_are_all_there_is_where_no_gpu_worked(tmp_path: Path) -> None:
    trace = json.loads(OLD)
    gpu = ("Kernel", "gpu_memcpy", "Memset")
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") not in gpu]
    (tmp_path / "a.json").write_text(json.dumps(trace))
    assert trace["deviceProperties"]
    assert scan(tmp_path / "a.json").operators.name.decoded() == ["aten::mm", "record_param_comms"]


@pytest.mark.parametrize(
    "told", ['{"rank": 3}', "{'rank': 3}"], ids=["a JSON string", "a Python repr"]
)
def test_distributed_info_that_is_a_string(tmp_path: Path, told: str) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"distributedInfo": told, "traceEvents": []}))
    assert scan(tmp_path / "a.json").metadata["distributedInfo"] == {"rank": 3}


def test_metadata_that_mean_nothing_are_noted(tmp_path: Path) -> None:
    trace = {"distributedInfo": "__import__('os')", "baseTimeNanoseconds": "1", "traceEvents": []}
    (tmp_path / "a.json").write_text(json.dumps(trace))
    found = scan(tmp_path / "a.json")
    assert [note.code for note in found.notes] == ["bad-metadata", "bad-metadata"]
    assert "distributedInfo" not in found.metadata


def test_the_content_tells_gzip_not_the_name(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(gzip.compress(OLD.encode()))
    (tmp_path / "b.json.gz").write_text(OLD)
    (tmp_path / "c.json").write_bytes(
        gzip.compress(OLD[:999].encode()) + gzip.compress(OLD[999:].encode())
    )
    counts = [scan(tmp_path / name).events for name in ("a.json", "b.json.gz", "c.json")]
    assert counts == [13, 13, 13]


# The law: any layout, either path, and a plain reading agree.


def same(a: Scan, b: Scan) -> None:
    for part in ("gpu", "launches", "synchronisations", "operators", "annotations"):
        one, other = getattr(a, part), getattr(b, part)
        for column in one.__struct_fields__:
            x, y = getattr(one, column), getattr(other, column)
            if isinstance(x, Coded):
                assert x.decoded() == y.decoded(), (part, column)
            else:
                assert np.array_equal(x, y), (part, column)
    assert a.calls == b.calls
    assert a.events == b.events


def test_agrees_on_real_traces(real_traces: Path, reference_scan: Callable[[Path], Scan]) -> None:
    files = [f for f in sorted(real_traces.rglob("*.json.gz")) if "malformed" not in f.name]
    assert files
    for file in files:
        plain = reference_scan(file)
        for fast in (True, False):
            found = scan(file, fast=fast)
            same(found, plain)
            assert found.metadata.keys() == plain.metadata.keys()
            # Lists and objects that nothing reads are not decoded.
            read = {key: value for key, value in found.metadata.items() if value is not None}
            assert read == {key: plain.metadata[key] for key in read}
            assert {"deviceProperties", "distributedInfo"} & plain.metadata.keys() <= read.keys()
            assert found.notes == ()


names = st.one_of(
    st.sampled_from(
        [
            "aten::mm",
            "c10d::allreduce_",
            "record_param_comms",
            "nccl:all_reduce",
            "gloo:broadcast",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)",
            "void f<{lambda(int)#1}, {lambda()#2}>",
            'say "ph": }, {"ph": "X"',
            "\n  },\n  {",
        ]
    ),
    st.text(max_size=8),
)
small = st.integers(0, 99)
times = st.one_of(
    st.integers(0, 2**51).map(Decimal),
    st.builds(lambda a, b: Decimal(f"{a}.{b:03}"), st.integers(0, 2**51), st.integers(0, 999)),
)
durations = st.builds(lambda a, b: Decimal(f"{a}.{b:03}"), st.integers(0, 9999), small)
numbers = (
    *("device", "stream", "correlation", "bytes", "fromDevice", "inDevice", "toDevice", "Seq"),
    *("wait_on_stream", "wait_on_cuda_event_id", "wait_on_cuda_event_record_corr_id"),
)
args = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(numbers, small),
        "Collective name": st.just("allreduce"),
        "Process Group Name": st.one_of(small, names),
        "Input Dims": st.lists(st.lists(small, max_size=2), max_size=2),
        "nested": st.lists(st.dictionaries(names, small, max_size=2), max_size=3),
        "ph": st.just("X"),
    },
)
categories = st.sampled_from(
    [
        "kernel",
        "Kernel",
        "gpu_memcpy",
        "Memset",
        "cuda_runtime",
        "cuda_driver",
        "Runtime",
        "cuda_sync",
        "cpu_op",
        "user_annotation",
        "python_function",
        "gpu_user_annotation",
        "overhead",
        "Trace",
    ]
)
complete = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "cat": categories,
        "name": names,
        "pid": small,
        "tid": small,
        "ts": times,
        "dur": durations,
    },
    optional={"args": args},
)
others = st.one_of(
    st.fixed_dictionaries(
        {
            "name": st.just("thread_name"),
            "ph": st.just("M"),
            "pid": small,
            "tid": small,
            "args": st.fixed_dictionaries({"name": names}),
        }
    ),
    st.fixed_dictionaries(
        {"ph": st.sampled_from("sfi"), "id": small, "cat": st.just("ac2g"), "name": names}
    ),
)
traces = st.fixed_dictionaries(
    {
        "deviceProperties": st.lists(st.just({"id": 0})),
        "traceEvents": st.lists(st.one_of(complete, complete, others), max_size=30),
        "baseTimeNanoseconds": st.integers(0, 2**60),
        "traceName": names,
    }
)


def numbered(value: Any) -> Any:
    return f"<<{value}>>" if isinstance(value, Decimal) else value


def dumped(value: Any, **options: Any) -> str:
    """JSON with exact decimals."""
    text = json.dumps(value, default=numbered, ensure_ascii=False, **options)
    return text.replace('"<<', "").replace('>>"', "")


def kineto(trace: Json, break_lines: bool) -> str:
    """As Kineto lays its files out: its older versions, and with ``break_lines`` its newer."""
    gap = ",\n    " if break_lines else ", "
    events = []
    for event in trace["traceEvents"]:
        fields = [f'"{key}": {dumped(value)}' for key, value in event.items() if key != "args"]
        text = "  {\n    " + gap.join(fields)
        if "args" in event:
            inner = ", ".join(f"{json.dumps(k)}: {dumped(v)}" for k, v in event["args"].items())
            text += (
                ("\n    " if break_lines else "") + ',\n    "args": {\n      ' + inner + "\n    }"
            )
        events.append(text + "\n  }")
    head = f'{{\n  "deviceProperties": {dumped(trace["deviceProperties"])},\n  "traceEvents": [\n'
    tail = f'\n  ],\n  "baseTimeNanoseconds": {trace["baseTimeNanoseconds"]},'
    return head + ",\n".join(events) + tail + f'\n  "traceName": {dumped(trace["traceName"])}\n}}'


def metadata_first(trace: Json) -> Json:
    return {key: trace[key] for key in reversed(trace)}


LAYOUTS: dict[str, Callable[[Json], str]] = {
    "kineto": lambda trace: kineto(trace, break_lines=False),
    "newer kineto": lambda trace: kineto(trace, break_lines=True),
    "one line": dumped,
    "compact": lambda trace: dumped(trace, separators=(",", ":")),
    "indented": lambda trace: dumped(metadata_first(trace), indent=2),
    "sorted": lambda trace: dumped(trace, sort_keys=True),
    "indented by tabs, sorted": lambda trace: dumped(trace, sort_keys=True, indent="\t"),
}


@settings(deadline=None)
@given(
    trace=traces,
    layout=st.sampled_from(sorted(LAYOUTS)),
    block=st.sampled_from([1, 61, 400, 1 << 18]),
)
def test_layouts_and_paths_agree(
    trace: Json, layout: str, block: int, reference_scan: Callable[[Path], Scan]
) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("commtrace.reader.json.source.BLOCK", block),
    ):
        file = Path(folder) / "a.json"
        file.write_text(LAYOUTS[layout](trace), encoding="utf-8")
        plain = reference_scan(file)
        for fast in (True, False):
            found = scan(file, fast=fast)
            assert found.notes == ()
            same(found, plain)
            assert found.metadata == plain.metadata


@given(trace=traces)
def test_a_bare_list_of_events(trace: Json) -> None:
    trace = {"traceEvents": [{"ph": "i"}, *trace["traceEvents"]]}
    with tempfile.TemporaryDirectory() as folder:
        bare, whole = Path(folder) / "bare.json", Path(folder) / "whole.json"
        bare.write_text(dumped(trace["traceEvents"]), encoding="utf-8")
        whole.write_text(dumped(trace), encoding="utf-8")
        same(scan(bare), scan(whole))


def test_layouts_may_mix_in_one_file(
    tmp_path: Path, reference_scan: Callable[[Path], Scan]
) -> None:
    trace = json.loads(OLD, parse_float=Decimal)
    single = ",\n".join(dumped(event) for event in trace["traceEvents"])
    compact = ",".join(dumped(event, separators=(",", ":")) for event in trace["traceEvents"])
    middle = OLD.index('  ],\n  "baseTime') - 1
    text = OLD[:middle] + ",\n" + single + "," + compact + ",\n" + OLD[OLD.index('  {\n    "ph"') :]
    (tmp_path / "a.json").write_text(text)
    found = scan(tmp_path / "a.json")
    assert found.events == 4 * 13
    same(found, reference_scan(tmp_path / "a.json"))
    assert msgspec.json.encode([call.args for call in found.calls])


def test_what_cannot_be_is_not_believed(tmp_path: Path) -> None:
    copy = {
        "ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD", "pid": 0, "tid": 7, "ts": 1,
        "dur": 1, "args": {"device": 0, "stream": 7, "bytes": -5, "toDevice": -9},
    }  # fmt: skip
    record = {
        "ph": "X", "cat": "cpu_op", "name": "record_param_comms", "pid": 1, "tid": 1, "ts": 1,
        "dur": 1, "args": {"Collective name": "allreduce", "In msg nelems": -1, "Group size": 0},
    }  # fmt: skip
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"traceEvents": [copy, record]}))
    found = scan(file)
    assert found.gpu.size_bytes.tolist() == found.gpu.to_device.tolist() == [NULL]
    (call,) = found.calls
    assert (call.args.collective, call.args.in_elements, call.args.group_size) == (
        "allreduce", None, None,
    )  # fmt: skip
    (note,) = found.notes
    assert note.code == "bad-arguments"
    assert note.message.startswith("of 2 events some arguments are not used")


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("correlation", [2, "two"])
@pytest.mark.parametrize("dtype", ["Float", 5])
def test_arguments_of_wrong_types_cost_what_needs_them(
    tmp_path: Path, fast: bool, correlation: object, dtype: object
) -> None:
    told = {"Collective name": "allreduce", "In msg nelems": 8, "Seq": 1}
    kernels = [
        {"device": 0, "stream": 7, "correlation": 1, "dtype": dtype} | told,
        {"device": 0, "stream": 7, "correlation": correlation},
        {"device": 0, "stream": 7, "correlation": 3},
    ]
    events = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": n, "dur": 1}
        | {"args": args}
        for n, args in enumerate(kernels)
    ]
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"traceEvents": events}))
    found = scan(file, fast=fast)
    assert found.gpu.correlation.tolist() == ([1, 2, 3] if correlation == 2 else [1, 3])
    (call,) = found.calls
    sound = Arguments(collective="allreduce", in_elements=8, dtype="Float", seq=1)
    assert call.args == (sound if dtype == "Float" else Arguments())
    odd = ["bad-events"] * (correlation != 2) + ["bad-arguments"] * (dtype == 5)
    assert [note.code for note in found.notes] == odd


def test_annotations_and_shapes_as_they_were_before_2022(tmp_path: Path) -> None:
    """NCCL's own annotations were operators then, and their shapes `Input dims`."""
    args = {"Input dims": [[64]], "Input type": ["float"]}
    its = {"ph": "X", "cat": "Operator", "name": "nccl:all_reduce", "ts": 5, "dur": 20}
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps({"traceEvents": [{**its, "pid": 1, "tid": 1, "args": args}]}))
    (call,) = scan(file).calls
    assert (call.category, call.args.dims, call.args.types) == (
        "user_annotation",
        [[64]],
        ["float"],
    )
