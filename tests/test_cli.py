"""The command line: results on stdout, one line on stderr, and the exit status."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commtrace import __version__
from commtrace.cli import app, main
from commtrace.cli.rule_options import rule_gists
from commtrace.record import Place
from commtrace.reports.content.prose import first_line
from commtrace.reports.formats import json as json_report
from commtrace.rules import RULES

Captured = pytest.CaptureFixture[str]

KERNEL = {
    "ph": "X",
    "cat": "kernel",
    "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)",
    "pid": 0,
    "tid": 7,
    "ts": 100.0,
    "dur": 10.0,
    "args": {"device": 0, "stream": 7, "correlation": 1},
}


def trace(*events: Any, rank: int | None = 0, world_size: int = 1) -> dict[str, Any]:
    info = {} if rank is None else {"rank": rank, "world_size": world_size}
    return {"distributedInfo": info, "traceEvents": list(events)}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def commtrace(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "commtrace", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


@pytest.fixture
def a_trace(tmp_path: Path) -> Path:
    return write(tmp_path / "rank0.json", trace(KERNEL))


def test_analyze_prints_text(a_trace: Path, capsys: Captured) -> None:
    assert main(["analyze", str(a_trace)]) == 0
    out, err = capsys.readouterr()
    assert "Where the time went" in out
    assert err == ""


def test_analyze_prints_json_and_markdown(a_trace: Path, capsys: Captured) -> None:
    assert main(["analyze", str(a_trace), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["devices"][0]["communication_ns"] == 10_000
    assert main(["analyze", str(a_trace), "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("# ")


def test_analyze_lists_operations(tmp_path: Path, capsys: Captured) -> None:
    named = {"Collective name": "allreduce", "Process Group Name": "0", "Seq": 3, "Group size": 2}
    args = {**KERNEL["args"], **named, "Process Group Ranks": [0, 1]}
    for rank in (0, 1):
        kernel = {**KERNEL, "ts": 100.0 + rank, "args": args}
        write(tmp_path / f"rank{rank}.json", trace(kernel, rank=rank, world_size=2))
    assert main(["analyze", str(tmp_path), "--format", "json", "--operations"]) == 0
    (operation,) = json.loads(capsys.readouterr().out)["operations"]
    assert list(operation["arrival_ns"]) == ["0", "1"]


@pytest.mark.parametrize(
    ("name", "start"),
    [
        *(("a.json", "{"), ("a.md", "# "), ("a.txt", "/")),
        *(("a.html", "<!DOCTYPE html>"), ("a.docx", None)),
    ],
)
def test_the_outputs_name_says_the_format(
    a_trace: Path, tmp_path: Path, capsys: Captured, name: str, start: str | None
) -> None:
    target = tmp_path / name
    status = main(["analyze", str(a_trace), "-o", str(target)])
    out, err = capsys.readouterr()
    assert out == ""
    if start is None:
        assert status == 2
        assert ".html, .json, .md, .txt" in err
        assert not target.exists()
    else:
        assert status == 0
        assert target.read_text("utf-8").startswith(start)


def test_a_picture_is_drawn(a_trace: Path, tmp_path: Path, capsys: Captured) -> None:
    target = tmp_path / "a.svg"
    assert main(["plot", str(a_trace), "breakdown", "-o", str(target)]) == 0
    assert target.read_bytes().startswith(b"<?xml")
    for arguments, said in (
        (["nothing", "-o", "a.svg"], "breakdown"),
        (["waits", "-o", "a"], ".png"),
    ):
        assert main(["plot", str(a_trace), *arguments]) == 2
        assert said in capsys.readouterr().err


def test_a_format_outranks_the_outputs_name(a_trace: Path, tmp_path: Path) -> None:
    target = tmp_path / "report"
    assert main(["analyze", str(a_trace), "-o", str(target), "--format", "json"]) == 0
    assert json.loads(target.read_text())["schema_version"] == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["analyze"], "Missing argument"),
        (["analyze", "/nowhere"], "/nowhere"),
        (["analyze", ""], "empty path"),
        (["analyze", "/nowhere", "--select", "stragler"], "did you mean straggler"),
        (["analyze", "/nowhere", "--ignore", "xyz"], "`commtrace explain` lists them"),
        (["analyze", "/nowhere", "--threshold", "straggler.share=3"], "it has: "),
        (["analyze", "x", "--frobnicate"], "--frobnicate"),
        (["analyze", "x", "--format", "pdf"], "pdf"),
        (["analyze", "x", "--operations"], "--format json"),
        (["frobnicate"], "frobnicate"),
        (["record", "no_such_workload"], "no_such_workload"),
        (["record", "all_reduce", "--set", "elements"], "KEY=VALUE"),
        (["record", "all_reduce", "--set", "elephants=1"], "elephants"),
        (["record", "all_reduce", "-n", "0"], "--world-size"),
        (["record", "all_reduce", "--backend", "mpi"], "mpi"),
        (["open", "/nowhere"], "/nowhere"),
        (["open", ""], "empty path"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    arguments: list[str], said: str, capsys: Captured
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("commtrace: ")
    assert err.count("\n") == 1
    assert said in err


def test_an_output_that_cannot_be_written(a_trace: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["analyze", str(a_trace), "-o", str(tmp_path / "none" / "a.json")]) == 2
    assert "No such file or directory: make its folder first" in capsys.readouterr().err


def test_a_folder_is_no_output(a_trace: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "a.json").mkdir()
    assert main(["analyze", str(a_trace), "-o", str(tmp_path / "a.json")]) == 2
    error = capsys.readouterr().err
    assert error.endswith("cannot be written: Is a directory: name another with -o\n")


@pytest.mark.parametrize(
    "content",
    [
        "",
        "no trace\x1b[2J\n" * 100,
        "[]",
        "{}",
        "null",
        '{"traceEvents": 3}',
        "[" * 100_000,
        '{"a":' * 100_000,
        b"\x1f\x8b\x08\x00garbage".decode("latin-1"),
    ],
)
def test_what_is_no_trace_is_one_line(tmp_path: Path, capsys: Captured, content: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content.encode("latin-1"))
    assert main(["analyze", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "rank0.json" in err
    assert "\x1b" not in err


@pytest.mark.parametrize("content", ["null", "3", '"a text"', "no JSON"])
def test_what_is_no_object_is_told_so(tmp_path: Path, capsys: Captured, content: str) -> None:
    assert main(["analyze", str(write(tmp_path / "rank0.json", content))]) == 2
    assert "is no JSON object or list" in capsys.readouterr().err


def test_an_empty_folder_is_one_line(tmp_path: Path, capsys: Captured) -> None:
    assert main(["analyze", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err


BAD = [
    {"ts": "now"},
    {"ts": None},
    {"ts": float("nan")},
    {"ts": 1e300},
    {"ts": -5.0},
    {"dur": -10.0},
    {"dur": float("inf")},
    {"dur": 1e300},
    {"dur": None},
    {"dur": 2.0**62},
    {"name": 7},
    {"name": None},
    {"name": "x" * 100_000},
    {"name": "\ud800\x1b[2J"},
    {"args": None},
    {"args": []},
    {"args": {"device": "zero", "stream": {}, "correlation": 2**70}},
    {"args": {"device": -1, "stream": -1}},
    {"args": {"device": 2**63}},
    {"pid": "Spans", "tid": "PyTorch Profiler", "args": {}},
    {"cat": "gpu_memcpy", "name": "Memcpy", "args": {"device": 0, "bytes": -1}},
    {"cat": "gpu_memcpy", "name": "Memcpy", "args": {"device": 0, "bytes": 2**62}},
    {"args": {"device": 0, "stream": 7, "In msg nelems": 2**62, "Collective name": "x"}},
    {"args": {"device": 0, "stream": 7, "Group size": 0, "Collective name": "allreduce"}},
]


def bad(change: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {**KERNEL, **change}.items() if value is not None}


@pytest.mark.parametrize("changes", [BAD[first::6] for first in range(6)])
def test_bad_events_spoil_nothing(
    tmp_path: Path, capsys: Captured, changes: list[dict[str, Any]]
) -> None:
    events = [KERNEL, *map(bad, changes), {**KERNEL, "ts": 200.0}]
    path = write(tmp_path / "rank0.json", trace(*events))
    assert main(["analyze", str(path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    _validate(document)
    assert document["devices"][-1]["communication_ns"] >= 0


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_bad_events_spoil_no_report(tmp_path: Path, capsys: Captured, form: str) -> None:
    path = write(tmp_path / "rank0.json", trace(KERNEL, *map(bad, BAD)))
    assert main(["analyze", str(path), "--format", form]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "info", [{"rank": 0, "world_size": 10**15}, {"rank": -3}, {"rank": "x"}, []]
)
def test_absurd_metadata(tmp_path: Path, capsys: Captured, info: Any) -> None:
    path = write(tmp_path / "rank0.json", {"distributedInfo": info, "traceEvents": [KERNEL]})
    assert main(["analyze", str(path), "--format", "json"]) == 0
    _validate(json.loads(capsys.readouterr().out))


def test_duplicate_and_missing_ranks_and_two_runs(tmp_path: Path, capsys: Captured) -> None:
    write(tmp_path / "a.json", trace(KERNEL, rank=0, world_size=4))
    write(tmp_path / "b.json", trace(KERNEL, rank=0, world_size=4))
    write(tmp_path / "c.json", trace(KERNEL, rank=2, world_size=8))
    assert main(["analyze", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "a.json" in said
    assert "c.json: analyze one at a time" in said
    write(tmp_path / "c.json", trace(KERNEL, rank=2, world_size=4))
    assert main(["analyze", str(tmp_path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    _validate(document)
    codes = {note["code"] for note in document["notes"]}
    assert {"duplicate-rank", "missing-rank"} <= codes


@pytest.mark.parametrize("compressed", [False, True])
def test_a_truncated_file_is_analysed_as_far_as_it_goes(
    tmp_path: Path, capsys: Captured, compressed: bool
) -> None:
    events = [{**KERNEL, "ts": 100.0 + 20 * n} for n in range(2_000)]
    whole = json.dumps(trace(*events), indent=1).encode()
    data = gzip.compress(whole) if compressed else whole
    path = tmp_path / ("rank0.json.gz" if compressed else "rank0.json")
    path.write_bytes(data[: len(data) * 2 // 3])
    assert main(["analyze", str(path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "truncated" in {note["code"] for note in document["notes"]}
    assert 0 < document["devices"][0]["communication_ns"] < 2_000 * 10_000


@pytest.fixture
def with_a_finding(tmp_path: Path) -> Path:
    """Of two ranks one has a trace, which `unfit-trace` says."""
    return write(tmp_path / "rank0.json", trace(KERNEL, world_size=2))


def found(capsys: Captured) -> list[str]:
    document = json.loads(capsys.readouterr().out)
    _validate(document)
    return sorted({finding["rule"] for finding in document["findings"]})


def test_strict_tells_findings_by_the_status(with_a_finding: Path, capsys: Captured) -> None:
    json_of = ["analyze", str(with_a_finding), "--format", "json"]
    assert main([*json_of, "--strict"]) == 1
    assert found(capsys) == ["unfit-trace"]
    assert main([*json_of]) == 0
    assert found(capsys) == ["unfit-trace"]
    assert main([*json_of, "--strict", "--ignore", "unfit-trace"]) == 0
    assert found(capsys) == []
    assert main([*json_of, "--strict", "--select", "straggler", "--select", "jitter"]) == 0
    assert found(capsys) == []


def test_an_analysis_by_broken_rules_alone_is_none(
    a_trace: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
    broken_rules: Callable[[str, Exception], str],
) -> None:
    from commtrace.rules import RULES, _ask

    def check(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(RULES["jitter"], "check", check)
    monkeypatch.setattr(_ask, "broken", broken_rules)
    assert main(["analyze", str(a_trace), "--select", "jitter"]) == 2
    out, err = capsys.readouterr()
    assert "jitter" in out
    assert err.startswith("commtrace: no rule could be checked: jitter was not checked: error in ")
    assert err.count("\n") == 1
    assert main(["analyze", str(a_trace), "--select", "jitter", "--select", "straggler"]) == 0


def test_good_news_is_no_finding_under_strict(
    a_trace: Path, capsys: Captured, monkeypatch: Any
) -> None:
    from commtrace.rules import RULES
    from commtrace.run import Run

    run = Run(RULES["at-the-roofline"].bad(), "run")
    monkeypatch.setattr("commtrace.run.load", lambda paths, **_: run)
    arguments = ["analyze", str(a_trace), "--strict", "--select", "at-the-roofline"]
    assert main(arguments) == 0
    assert "Good news: " in capsys.readouterr().out


def test_thresholds_from_the_configuration_and_over_it(
    tmp_path: Path, capsys: Captured, monkeypatch: Any
) -> None:
    from commtrace.rules import RULES
    from commtrace.run import Run

    run = Run(RULES["straggler"].bad(), "run")
    monkeypatch.setattr("commtrace.run.load", lambda paths, **_: run)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COMMTRACE_CONFIG", raising=False)
    arguments = ["analyze", "x", "--format", "json", "--select", "straggler"]
    assert main(arguments) == 0
    assert found(capsys) == ["straggler"]
    (tmp_path / "pyproject.toml").write_text(
        "[tool.commtrace.rules.straggler]\nmin_step_share = 0.9"
    )
    assert main(arguments) == 0
    assert found(capsys) == []
    assert main([*arguments, "--threshold", "straggler.min_step_share=0.1"]) == 0
    assert found(capsys) == ["straggler"]


@pytest.mark.filterwarnings("default::FutureWarning")
def test_an_old_name_of_a_threshold_is_taken_with_one_line(
    tmp_path: Path, capsys: Captured, monkeypatch: Any
) -> None:
    from commtrace.rules import RULES
    from commtrace.run import Run

    run = Run(RULES["straggler"].bad(), "run")
    monkeypatch.setattr("commtrace.run.load", lambda paths, **_: run)
    config = write(tmp_path / "mine.toml", "[tool.commtrace.rules.straggler]\nmin_share = 0.9")
    monkeypatch.setenv("COMMTRACE_CONFIG", str(config))
    arguments = ["analyze", "x", "--format", "json", "--select", "straggler"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["findings"] == []
    assert err == (
        "commtrace: straggler.min_share is now straggler.min_step_share: "
        "set min_step_share = 0.9; the old name goes with 1.0\n"
    )
    assert main([*arguments, "--threshold", "straggler.min_share=0.1"]) == 0
    assert found(capsys) == ["straggler"]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("stragler]\nmin_step_share = 1", "straggler"),
        ("straggler]\nmin_sare = 1", "min_sare"),
        ("straggler]\nmin_step_share = true", "float, not True"),
        ("early-root]\nmin_operations = 2.5", "int, not 2.5"),
    ],
)
def test_a_wrong_configuration_is_one_line_that_names_it(
    a_trace: Path, capsys: Captured, monkeypatch: Any, table: str, said: str
) -> None:
    file = write(a_trace.parent / "mine.toml", f"[tool.commtrace.rules.{table}")
    monkeypatch.setenv("COMMTRACE_CONFIG", str(file))
    assert main(["analyze", str(a_trace)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert str(file) in err
    assert said in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--select", "stragler"], "did you mean straggler"),
        (["--ignore", "nothing"], "'nothing'"),
        (["--threshold", "straggler"], "RULE.FIELD=VALUE"),
        (["--threshold", "straggler=3"], "RULE.FIELD=VALUE"),
        (["--threshold", "stragler.min_step_share=3"], "did you mean straggler"),
        (["--threshold", "straggler.share=3"], "it has: min_step_share"),
        (["--threshold", "straggler.min_step_share=much"], "must be a float"),
        (["--threshold", "straggler.min_step_share=nan"], "must be a float"),
        (["--threshold", "early-root.min_operations=2.5"], "must be an int"),
        (["--select", "jitter", "--threshold", "straggler.share=3"], "it has: min_step_share"),
    ],
)
def test_a_wrong_rule_or_threshold_is_one_line(
    a_trace: Path, capsys: Captured, arguments: list[str], said: str
) -> None:
    assert main(["analyze", str(a_trace), *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert said in err


def test_the_list_of_rules_is_read_from_their_files() -> None:
    assert rule_gists() == {name: first_line(its.__doc__ or "") for name, its in RULES.items()}


def test_explain_lists_and_explains(capsys: Captured) -> None:
    assert main(["explain"]) == 0
    assert "\nstraggler: Ranks that do more" in capsys.readouterr().out
    assert main(["explain", "straggler"]) == 0
    assert "Blind spots" in capsys.readouterr().out
    assert main(["explain", "stragler"]) == 2
    assert "did you mean straggler" in capsys.readouterr().err


def test_a_file_name_is_no_terminal_sequence(tmp_path: Path) -> None:
    path = write(tmp_path / "\x1b[2Jrank0\n.json", "nothing")
    done = commtrace("analyze", path)
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_name_that_is_no_utf8(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/rank0\xff.json"
    Path(os.fsdecode(path)).write_text(json.dumps(trace(KERNEL)))
    # Their own standard output, of which a name may be too much; once for all three.
    script = (
        "import sys; from commtrace.cli import main; sys.exit(max(main(['analyze', sys.argv[1], "
        "'--format', form]) for form in ('text', 'json', 'markdown')))"
    )
    command = [sys.executable, "-c", script, path]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_terminal_without_the_glyphs(a_trace: Path) -> None:
    plain = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = commtrace("analyze", a_trace, env=plain)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_goes_away_is_no_error(a_trace: Path) -> None:
    command = [sys.executable, "-m", "commtrace", "analyze", str(a_trace), "--format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--workers", "1"),
        ("--workers", "2"),
        ("--select", "straggler"),
        ("--threshold", "straggler.min_step_share=0.3"),
    ],
)
def test_a_fault_in_reading_is_one_line(
    a_trace: Path, monkeypatch: pytest.MonkeyPatch, capfd: Captured, options: tuple[str, ...]
) -> None:
    """Also where rules have loaded pandas, so that no time is gained by a process."""
    monkeypatch.setattr("commtrace.reader.workers.scan", None)
    assert main(["analyze", str(a_trace), *options]) == 2
    assert re.fullmatch(
        rf"commtrace: {re.escape(str(a_trace))}: cannot be read: TypeError in workers.py, line "
        r"\d+, a fault of commtrace's: please report it\n",
        capfd.readouterr().err,
    )


def test_what_if(recorded: Path, capsys: Captured) -> None:
    folder = str(recorded / "straggler" / "gloo-4")
    assert main(["whatif", folder, "rank=1:typical", "remove:barrier", "--format", "json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["edits"]
    assert first["saved_ns"] > 0
    assert second["refused"] == "the run has no barrier"
    assert main(["whatif", folder, "slower"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("commtrace: no edit is called 'slower'; there are even, rank=R:typical")
    assert error.count("\n") == 1
    assert main(["whatif", "--help"]) == 0
    assert "link=A-B:50GB/s    messages between" in capsys.readouterr().out


def test_version_help_and_workloads(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"commtrace {__version__}\n"
    assert main([]) == 0
    assert "analyze" in capsys.readouterr().out
    assert main(["workloads"]) == 0
    out = capsys.readouterr().out
    assert "all_reduce\n    What" in out
    assert "elements=" in out


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("explain late-r", ["late-receiver", "late-root"]),
        ("analyze TRACE --select stra", ["straggler"]),
        ("analyze TRACE --ignore pipe", ["pipeline-bubble"]),
        ("analyze TRACE --format m", ["markdown"]),
        ("record all_re", ["all_reduce"]),
        ("record all_reduce --backend n", ["nccl"]),
        ("wor", ["workloads"]),
        ("whatif TRACE no-wait:all_r", ["no-wait:all_reduce"]),
        ("whatif TRACE e", ["even"]),
        ("analyze no_such_file", []),  # the shell completes files itself
    ],
)
def test_a_shell_completes_what_was_typed(
    typed: str, offered: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the script of --show-completion asks."""
    monkeypatch.setenv("_COMMTRACE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"commtrace {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    assert main([]) == 0
    assert capsys.readouterr().out.split() == offered


def test_the_names_that_complete_are_the_rules() -> None:
    from commtrace.cli.rule_options import rule_names
    from commtrace.rules import RULES

    assert rule_names() == list(RULES)


def test_the_completions_script_is_shown(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "zsh")
    assert main(["--show-completion"]) == 0
    assert "_COMMTRACE_COMPLETE=complete_zsh commtrace" in capsys.readouterr().out


COMMANDS = ("analyze", "compare", "cache", "explain", "plot", "record", "workloads", "open")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_says_its_default(command: str) -> None:
    from typer.main import get_command

    options: Any = vars(get_command(app))["commands"][command].params
    unsaid = [
        option.name
        for option in options
        if not option.required and "default" not in option.help and not option.show_default
    ]
    assert unsaid == []


def test_the_commands_are_told_in_whole_sentences(capsys: Captured) -> None:
    """In the 80 columns that a terminal has none is cut."""
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {command}  " in out for command in COMMANDS)
    assert "..." not in out[out.index("Commands:") :]


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--help"], ("numpy", "pandas", "torch", "matplotlib", "msgspec")),
        (["workloads"], ("torch", "pandas", "matplotlib")),
        (
            ["analyze", "TRACE"],
            ("torch", "matplotlib", "pandas", "pydantic", "rich.console", "numpy.ma"),
        ),
        (
            ["analyze", "TRACE", "-o", "REPORT"],
            ("torch", "matplotlib", "pandas", "pydantic", "numpy.ma"),
        ),
    ],
)
def test_a_command_imports_only_what_it_needs(
    a_trace: Path, tmp_path: Path, arguments: list[str], unwanted: tuple[str, ...]
) -> None:
    files = {"TRACE": str(a_trace), "REPORT": str(tmp_path / "report.json")}
    given = [files.get(argument, argument) for argument in arguments]
    script = (
        "import sys; from commtrace.cli import main; "
        f"status = main({given}); loaded = [m for m in {unwanted} if m in sys.modules]; "
        "sys.exit(status or ', '.join(loaded) or None)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_record_then_analyze(tmp_path: Path, capsys: Captured, monkeypatch: Any) -> None:
    asked: dict[str, Any] = {}

    def record(workload: str, **options: Any) -> Path:
        asked.update(options, workload=workload)
        return tmp_path / "a folder"

    monkeypatch.setattr("commtrace.record.record", record)
    options = ["--set", "elements=5", "--set", "dtype=float16", "-n", "3", "--backend", "gloo"]
    assert main(["record", "all_reduce", *options]) == 0
    assert asked == {
        "workload": "all_reduce",
        "settings": {"elements": "5", "dtype": "float16"},
        "world_size": 3,
        "backend": "gloo",
        "out": None,
        "place": Place(),
    }
    out, err = capsys.readouterr()
    assert out == f"{tmp_path}/a folder\n"
    assert f"commtrace analyze '{tmp_path}/a folder'" in err


def _validate(document: Any) -> None:
    import jsonschema

    jsonschema.Draft202012Validator(json_report.schema()).validate(document)
