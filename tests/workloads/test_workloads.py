"""Every workload asks a question, can be set, and computes what it says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from commtrace.errors import UsageError
from commtrace.metrics.run.ranges import RANGES
from commtrace.record.workloads import Workload, available

WORKLOADS = {workload.name: workload for workload in available()}
CASES = [pytest.param(workload, id=name) for name, workload in WORKLOADS.items()]

# Smaller than by default where that saves time.
SMALL = {"elements": 1003, "width": 64, "layers": 3, "delay_ms": 1.0, "timeout_s": 0.2}

TOGETHER = '''
"""Do all the workloads of a folder compute what they say?"""

import importlib.util
import inspect
import warnings
from pathlib import Path


def setup(ctx, folder: str = "", skip: str = ""):
    warnings.simplefilter("error")
    states = []
    for path in sorted(Path(folder).glob("*.py")):
        if path.stem in skip.split(","):
            continue
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        known = inspect.signature(module.setup).parameters
        settings = {k: v for k, v in SMALL.items() if k in known}
        states.append((module, module.setup(ctx, **settings)))
        if path.stem == "decomposed_all_reduce":
            states.append((module, module.setup(ctx, **settings, variant="full_output")))
    return states


def step(states):
    for module, state in states:
        module.step(state)


def check(states):
    for module, state in states:
        module.check(state)
'''


def test_the_workloads_are_there() -> None:
    operations = {"broadcast", "reduce", "all_reduce", "scatter", "gather", "all_gather"}
    operations |= {"reduce_scatter", "all_to_all", "barrier", "send_recv", "isend_irecv"}
    puzzles = {"decomposed_all_reduce", "p2p_copies", "host_device_copies", "deadlock"}
    questions = {"broadcast_precision", "overlap", "wait_or_synchronize", "cold_start"}
    assert operations | puzzles | questions <= WORKLOADS.keys()
    assert {"straggler", "pipeline", "ddp_training"} <= WORKLOADS.keys()


@pytest.mark.parametrize("workload", CASES)
def test_poses_a_question_and_can_be_set(workload: Workload) -> None:
    assert workload.question.endswith("?")
    # A barrier has no size; three look at several types, or at none.
    if workload.name != "barrier":
        assert {"elements", "width"} & workload.settings.keys()
    if workload.name not in ("barrier", "broadcast_precision", "ddp_training", "deadlock"):
        assert workload.settings["dtype"] == "float32"


@pytest.mark.parametrize("workload", CASES)
def test_its_answer_can_be_read_off_the_table_of_ranges(workload: Workload) -> None:
    # Who is late, where a pipeline idles and which link is slow is for the rules to say.
    if workload.name in ("straggler", "pipeline", "p2p_copies"):
        assert workload.answer == ()
        return
    column, *labels = workload.answer
    assert column in {column.name for column in RANGES.columns}
    source = workload.path.read_text("utf-8")
    if workload.name not in ("broadcast_precision", "host_device_copies"):  # their labels are made
        assert all(source.count(f'"{label}"') > 1 for label in labels)


@pytest.mark.parametrize("workload", CASES)
def test_is_short_and_explained(workload: Workload) -> None:
    text = workload.path.read_text("utf-8")
    module = ast.parse(text)
    assert "\n\n" in (ast.get_docstring(module) or ""), "what to look for, after the question"
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    assert all(ast.get_docstring(function) for function in functions)
    told = sum(
        len((ast.get_docstring(node, clean=False) or "").splitlines())
        for node in (module, *functions)
    )
    assert sum(bool(line.strip()) for line in text.splitlines()) - told <= 40


@pytest.fixture
def together(tmp_path: Path) -> Path:
    """One workload that runs all others, so that ranks have to be started only once."""
    path = tmp_path / "together.py"
    path.write_text(TOGETHER.replace("SMALL", repr(SMALL)), "utf-8")
    return path


def _record(together: Path, backend: str, world_size: int) -> None:
    from commtrace.record.launch import record

    settings = {"skip": "p2p_copies", "iterations": "1", "warmup": "1"}
    settings["folder"] = str(WORKLOADS["all_reduce"].path.parent)
    out = together.parent / "recording"
    record(str(together), settings=settings, world_size=world_size, backend=backend, out=out)
    assert len(list(out.glob("rank*.json.gz"))) == world_size


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded")
def test_computes_what_it_says_on_gloo(together: Path) -> None:
    _record(together, "gloo", 3)


@pytest.mark.gpu
@pytest.mark.slow
def test_computes_what_it_says_on_nccl(together: Path) -> None:
    import torch

    devices = torch.cuda.device_count()
    if devices < 2:
        pytest.skip("needs 2 CUDA devices")
    _record(together, "nccl", devices)


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded")
def test_says_in_one_line_what_it_needs(tmp_path: Path) -> None:
    import torch

    from commtrace.record.launch import record

    if torch.cuda.device_count() >= 2:
        record("p2p_copies", settings={"elements": "1000"}, out=tmp_path / "copies")
    else:
        with pytest.raises(UsageError, match="at least 2 CUDA devices"):
            record("p2p_copies", backend="gloo", out=tmp_path / "copies")
