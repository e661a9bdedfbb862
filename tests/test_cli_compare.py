"""``commtrace compare``: both sides, the gate's exit status, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commtrace import comparison
from commtrace.cli import main
from commtrace.comparing.compared import compared
from commtrace.comparing.recorded import Recorded
from commtrace.comparison import Comparison
from commtrace.diagnosis import Diagnosis
from commtrace.metrics.run.summary import summary
from commtrace.synthetic import Tiny

Captured = pytest.CaptureFixture[str]


def run(name: str) -> Recorded:
    """A run whose name says how long its steps are, in ms."""
    tiny = Tiny(1)
    for step in range(5):
        tiny.step(0, step, 100_000 * step, 1_000 * float(name))
        tiny.kernel(0, 100_000 * step + 10, 1_000 * float(name) - 20 + step)
    its = tiny.trace()
    return Recorded(summary(its, name), its, Diagnosis())


@pytest.fixture(autouse=True)
def _runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(base: list[str], candidate: list[str], **more: object) -> Comparison:
        its = compared([run(one) for one in base], [run(one) for one in candidate])
        return Comparison(its)

    monkeypatch.setattr(comparison, "compare", compare)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["10", "20"], 0),
        (["10", "20", "--gate", "3"], 1),
        (["10", "20", "--gate", "99"], 0),
        (["10", "10", "--gate", "3"], 0),
        (["10", "10.4", "--gate", "3", "--strict"], 1),
        (["20", "10", "--gate", "3"], 0),
        (["10", "10", "10", "--", "20", "20", "--gate", "3"], 1),
        (["--gate", "3", "10", "--", "20"], 1),
    ],
)
def test_the_exit_status_is_the_gate_s(options: list[str], status: int, capsys: Captured) -> None:
    assert main(["compare", *options]) == status
    assert "a step takes" in capsys.readouterr().out


@pytest.mark.parametrize(
    "paths", [["10"], ["10", "20", "30"], ["--", "10"], ["10", "--"], ["1", "--", "2", "--", "3"]]
)
def test_both_sides_are_needed(paths: list[str], capsys: Captured) -> None:
    assert main(["compare", *paths]) == 2
    assert "compare: needs a recording of each side" in capsys.readouterr().err


def test_a_file_has_its_ending_s_format(tmp_path: Path, capsys: Captured) -> None:
    for suffix, begins in (
        (".json", "{"),
        (".md", "# "),
        (".html", "<!doctype"),
        (".xml", "<?xml"),
    ):
        file = tmp_path / f"report{suffix}"
        assert main(["compare", "10", "20", "-o", str(file)]) == 0
        assert file.read_text("utf-8").startswith(begins)
    assert capsys.readouterr().out == ""
    assert main(["compare", "10", "20", "-o", str(tmp_path / "report.pdf")]) == 2
    assert "end its name in one of .txt, .json, .md" in capsys.readouterr().err
    assert main(["compare", "10", "20", "--format", "pdf"]) == 2


def test_github_s_summary_is_appended_to_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    file = tmp_path / "summary.md"
    file.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    assert main(["compare", "10", "20", "--format", "github", "--gate", "3"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("::error ")
    assert out.count("\n") == 1
    assert file.read_text("utf-8").startswith("before\n# 10 → 20\n")


def test_the_json_says_what_the_gate_was(capsys: Captured) -> None:
    assert main(["compare", "10", "20", "--format", "json", "--gate", "3"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "slower"
    assert document["gate_pct"] == 3
    assert "slower by at least" in document["gate_failed"]
