"""How the command line ends: its status, one line on stderr or none, and no half file."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from commtrace.cli import main
from commtrace.errors import RecordError, UsageError
from commtrace.record import manifest

TRACE = Path(__file__).parent.parent / "traces" / "barrier" / "gloo-4" / "rank0.json.gz"

PRINTING = ["--help", "--version", "explain straggler", "workloads", "analyze TRACE"]
SCRIPT = "from commtrace.__main__ import main; sys.exit(main())"
INTERRUPTED_AT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


def shell(command: str, redirection: str) -> subprocess.CompletedProcess[str]:
    """The command, as a shell runs it with a stream redirected."""
    words = command.replace("TRACE", str(TRACE))
    line = f"{sys.executable} -m commtrace {words} {redirection}"
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("command", "redirection"),
    [*((each, ">/dev/full") for each in PRINTING), ("--version", ">&-"), ("analyze TRACE", ">&-")],
)
def test_an_output_that_takes_nothing_is_one_line(command: str, redirection: str) -> None:
    done = shell(command, redirection)
    assert done.returncode == 2
    assert done.stderr.startswith("commtrace: standard output: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize(("command", "status"), [("analyze TRACE", 0), ("analyze /nowhere", 2)])
def test_nobody_to_tell_changes_no_status(redirection: str, command: str, status: int) -> None:
    assert shell(command, redirection).returncode == status


@pytest.mark.parametrize("command", ["--help", "explain"])
def test_a_reader_that_has_gone_is_told_nothing(command: str) -> None:
    done = shell(command, "| true; exit ${PIPESTATUS[0]}")
    assert done.returncode in (0, 141)  # 0 where the pipe took it all before
    assert done.stderr == ""


@pytest.mark.parametrize(
    "name",
    ["commtrace.cli", "typer", "commtrace.run", "commtrace.reader", "numpy", "commtrace.rules"],
)
def test_ctrl_c_during_an_import_is_silent(name: str) -> None:
    script = INTERRUPTED_AT.format(name=name) + SCRIPT
    command = [sys.executable, "-c", script, "analyze", str(TRACE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("fails", ["write_bytes", "replace"])
def test_a_full_disk_leaves_the_file_that_was_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any, fails: str
) -> None:
    def full(path: Path, *_: object, **__: object) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target = tmp_path / "report.json"
    target.write_text("before")
    (tmp_path / "manifest.json").write_text("before")
    monkeypatch.setattr(Path, fails, full)
    if fails == "write_bytes":
        monkeypatch.setattr(manifest, "create", full)
    assert main(["analyze", str(TRACE), "-o", str(target)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"commtrace: {target}: cannot be written: No space left on device: ")
    assert error.count("\n") == 1
    with pytest.raises(RecordError, match="No space left on device; make room"):
        manifest.write(tmp_path, {}, None)
    assert {file.name for file in tmp_path.iterdir()} == {"report.json", "manifest.json"}
    assert {file.read_text() for file in tmp_path.iterdir()} == {"before"}


def test_an_output_that_is_a_device_or_a_link(tmp_path: Path) -> None:
    assert main(["analyze", str(TRACE), "-o", "/dev/full", "--format", "text"]) == 2
    assert main(["analyze", str(TRACE), "-o", "/dev/null", "--format", "text"]) == 0
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "file.json")
    assert main(["analyze", str(TRACE), "-o", str(link)]) == 0
    assert link.is_symlink()
    assert json.loads((tmp_path / "file.json").read_text())["schema_version"] == 1


def test_workers_are_as_many_as_asked(monkeypatch: Any) -> None:
    asked: list[Any] = []

    def load(_: object, *, workers: int, **__: object) -> None:
        asked.append(workers)
        raise UsageError("enough")

    monkeypatch.setattr("commtrace.run.load", load)
    assert main(["analyze", str(TRACE), "--workers", "3"]) == 2
    assert asked == [3]
    assert main(["analyze", str(TRACE), "--workers", "0"]) == 2
    assert asked == [3]


@pytest.mark.parametrize("use", ["ct.recording('x')", "ct.trace_handler('x')", "ct.step()"])
def test_without_torch_recording_says_what_to_install(use: str) -> None:
    script = (
        "import sys; sys.modules['torch'] = None; import commtrace as ct\n"
        f"try: {use}\nexcept ct.UsageError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("recording needs PyTorch")
    assert done.stdout.endswith(": pip install torch\n")


@pytest.mark.parametrize(
    "content",
    [
        {"model_type": "llama", "hidden_size": 4096},
        {"global_step": 10, "log_history": [{"loss": 2.0, "step": 10}]},
        [{"loss": 2.0, "step": 10}],
    ],
)
def test_another_programs_json_is_told_what_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: Any
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert main(["analyze", str(tmp_path / "config.json")]) == 2
    assert "give a trace that torch.profiler exported" in capsys.readouterr().err
