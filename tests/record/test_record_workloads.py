from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commtrace.errors import UsageError
from commtrace.record import workloads


def write(folder: Path, setup: str = "def setup(ctx): ...", more: str = "") -> Path:
    path = folder / "mine.py"
    path.write_text(f'"""Why?"""\n{more}\n{setup}\ndef step(state): ...\ndef check(state): ...\n')
    return path


def test_the_shipped_workloads_pose_a_question_and_have_settings() -> None:
    shipped = workloads.available()
    assert [w.name for w in shipped] == sorted(w.name for w in shipped)
    assert "all_reduce" in {w.name for w in shipped}
    for workload in shipped:
        assert workload.question.endswith("?")
        assert {"iterations", "warmup"} <= set(workload.settings)
        assert workloads.find(workload.name) == workload.path


def test_listing_the_workloads_does_not_import_torch() -> None:
    code = "import sys; from commtrace.record import available; available()"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_a_file_says(faulty: Path) -> None:
    workload = workloads.parse(faulty)
    assert workload.name == "faulty"
    assert workload.question == "Does one rank's fault end the recording?"
    assert workload.answer == ()
    assert workload.world_size is None
    assert workload.settings == {
        "fault": "none",
        "elements": "8",
        "dtype": "float32",
        "iterations": "5",
        "warmup": "2",
    }


def test_module_constants_are_defaults(tmp_path: Path) -> None:
    more = "WORLD_SIZE: int = 2\nITERATIONS = 3\nWARMUP = 0\n"
    workload = workloads.parse(write(tmp_path, more=more))
    assert workload.world_size == 2
    assert workload.settings == {"iterations": "3", "warmup": "0"}


def test_where_the_answer_stands(tmp_path: Path) -> None:
    answer = 'ANSWER = ("duration_ns_p50", "synchronous", "overlapped")\n'
    workload = workloads.parse(write(tmp_path, more=answer))
    assert workload.answer == ("duration_ns_p50", "synchronous", "overlapped")


def test_values_by_type(tmp_path: Path) -> None:
    setup = (
        "def setup(ctx, a: int = 1_000, b: float = -0.5, *, c: str = 'x', d: bool = False,"
        " e: torch.dtype = torch.float32): ..."
    )
    workload = workloads.parse(write(tmp_path, setup))
    assert workload.values({}) == {
        "a": 1000,
        "b": -0.5,
        "c": "x",
        "d": False,
        "e": "float32",
        "iterations": 5,
        "warmup": 2,
    }
    chosen = {"a": "2", "b": "1e3", "c": "", "d": "yes", "e": "bfloat16", "warmup": "0"}
    values = workload.values(chosen)
    assert list(values.values()) == [2, 1000.0, "", True, "bfloat16", 5, 0]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"element": "1"}, r"no setting 'element' \(did you mean elements\?\); it has fault, el"),
        ({"elements": "many"}, "setting elements: 'many' is not of type int"),
        ({"dtype": "float17"}, "setting dtype: 'float17' is not of type torch.dtype"),
        ({"iterations": "0"}, "setting iterations: at least 1, not 0"),
        ({"warmup": "-1"}, "setting warmup: at least 0, not -1"),
    ],
)
def test_settings_that_cannot_be(faulty: Path, chosen: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        workloads.parse(faulty).values(chosen)


@pytest.mark.parametrize(
    ("setup", "more", "message"),
    [
        ("def setup(ctx, a: list = 1): ...", "", "setting a is annotated list; it must be one of"),
        ("def setup(ctx, a=1): ...", "", "setting a is annotated nothing"),
        ("def setup(ctx, a: int): ...", "", "setting a needs a literal as its default"),
        ("def setup(ctx, *, a: int = f()): ...", "", "setting a needs a literal as its default"),
        ("", "", "setup is missing"),
        ("def setup(ctx): ...", "WARMUP = f()", "WARMUP must be a literal integer"),
        ("def setup(ctx): ...", "ANSWER = ('compute_ns',)", "ANSWER must be a tuple of literals"),
        ("def setup(ctx): ...", "ANSWER = ('compute_ns', f())", "ANSWER must be a tuple of lit"),
        ("def setup(ctx): ...", "ANSWER = answer()", "ANSWER must be a tuple of literals"),
        ("def setup(ctx: ...", "", "mine.py: cannot be read as Python"),
    ],
)
def test_files_that_do_not_keep_to_the_protocol(
    tmp_path: Path, setup: str, more: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        workloads.parse(write(tmp_path, setup, more))


def test_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path)
    assert workloads.find(str(path)) == path
    monkeypatch.chdir(tmp_path)
    assert workloads.find("mine.py") == path
    with pytest.raises(UsageError, match=r"no workload 'all_reduc' \(did you mean all_reduce"):
        workloads.find("all_reduc")
    with pytest.raises(UsageError, match=r"yours\.py: no such file"):
        workloads.find("yours.py")
