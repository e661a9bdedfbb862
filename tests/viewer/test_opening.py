"""What ``open`` writes, says and serves, without a browser."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from commtrace.analysis import Analysis
from commtrace.cli import main
from commtrace.errors import UsageError
from commtrace.reports.content.open_command import (
    numbered_findings,
    open_command,
    range_in_run,
)
from commtrace.rules import RULES
from commtrace.run import Run
from commtrace.viewer import opening
from commtrace.viewer.links import finding_link
from commtrace.viewer.server import PAGE

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return Run(RULES["straggler"].bad(), "a run").analysis()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_IDLE_S", 0.0)
    monkeypatch.setattr(opening, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(opening, "bundled_ui", dict)
    monkeypatch.delenv("SSH_CONNECTION", raising=False)


def got(address: str, **headers: str) -> str:
    url = urlsplit(address)
    assert url.hostname is not None
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=20)
    connection.request("GET", url.path, headers=headers)
    reply = connection.getresponse()
    text = reply.read().decode("latin-1")
    connection.close()
    assert reply.status == 200
    return text


def test_the_run_and_its_findings_are_served(analysis: Analysis) -> None:
    pages: list[str] = []
    said: list[str] = []

    def browser(link: str) -> None:
        asked = parse_qs(link.partition("#!/?")[2])
        assert link.startswith(f"{PAGE}/#!/?")
        pages.append(got(asked["url"][0], Origin=PAGE))
        pages.append(got(said[1].rpartition(" ")[2]))

    opening.open_timeline(analysis, browser=browser, port=0, tell=said.append)
    timeline, page = pages
    assert timeline.startswith("\x1f\x8b")
    assert len(re.findall("<li>", page)) == len(numbered_findings(analysis.verdict))
    assert "local network" in said[2]


def test_names_of_a_trace_are_no_markup(analysis: Analysis) -> None:
    finding = replace(analysis.verdict.diagnosis.findings[0], summary=HOSTILE, advice=HOSTILE)
    diagnosis = replace(analysis.verdict.diagnosis, findings=(finding,))
    hostile = replace(
        analysis,
        run=replace(analysis.run, name=HOSTILE),
        verdict=replace(analysis.verdict, diagnosis=diagnosis),
    )
    said: list[str] = []
    pages: list[str] = []
    opening.open_timeline(
        hostile,
        browser=lambda _: pages.append(got(said[1].rpartition(" ")[2])),
        port=0,
        tell=said.append,
    )
    assert HOSTILE not in pages[0]
    assert pages[0].count("&lt;script&gt;") == 4


def test_a_findings_link_has_its_range_and_tracks(analysis: Analysis) -> None:
    _, finding = numbered_findings(analysis.verdict)[0]
    link = finding_link(finding, analysis.measures, PAGE, "http://127.0.0.1:9001/x/run.pftrace.gz")
    asked = parse_qs(link.partition("#!/?")[2])
    assert asked["url"] == ["http://127.0.0.1:9001/x/run.pftrace.gz"]
    assert (asked["visStart"], asked["visEnd"]) == ([str(finding.start_ns)], [str(finding.end_ns)])
    assert "^findings$" in asked["startupCommands"][0]
    assert f"rank {finding.ranks[0]}" in asked["startupCommands"][0]


def test_over_ssh_the_tunnel_is_told(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 50000 10.0.0.2 2222")
    monkeypatch.setenv("LOGNAME", "me")
    said: list[str] = []
    opening.open_timeline(analysis, browser=None, port=0, tell=said.append)
    port = re.search(r"\d+(?=%2F|/)", said[1].partition("127.0.0.1")[2])
    assert port is not None
    tunnel = f"ssh -p 2222 -N -L {port[0]}:127.0.0.1:{port[0]} me@10.0.0.2"
    assert said[0].endswith(tunnel)
    assert said[1].startswith("open http")


def test_a_finding_that_there_is_not(analysis: Analysis) -> None:
    with pytest.raises(UsageError, match=r"--finding 99: the run has \d+ findings?"):
        opening.open_timeline(analysis, finding=99, browser=None, port=0)


def test_the_file_is_kept_where_wanted(analysis: Analysis, tmp_path: Path) -> None:
    opening.open_timeline(analysis, save=tmp_path / "a.pftrace.gz", browser=None, port=0)
    assert [file.name for file in tmp_path.iterdir()] == ["a.pftrace.gz"]
    with pytest.raises(UsageError, match="cannot be written"):
        opening.open_timeline(analysis, save=tmp_path / "no" / "a.pftrace.gz", browser=None, port=0)


def test_findings_are_numbered_as_in_the_report(analysis: Analysis) -> None:
    found = numbered_findings(analysis.verdict)
    assert [number for number, _ in found] == list(range(1, len(found) + 1))
    assert {id(its) for _, its in found} == {id(f) for f in analysis.verdict.diagnosis.findings}
    explained = [finding.explained_by is not None for _, finding in found]
    assert explained == sorted(explained)


def test_what_began_on_a_clock_that_is_behind_began_with_the_run(analysis: Analysis) -> None:
    (_, finding), *_ = numbered_findings(analysis.verdict)
    early = replace(finding, start_ns=finding.start_ns - 10**10)
    assert range_in_run(analysis, early).startswith("from 0 to ")


def test_the_command_repeats_what_it_takes_to_get_the_same_numbers() -> None:
    run = Run(RULES["straggler"].bad(), "x", paths=("a b", "c"))
    analysis = run.analysis(select=["straggler"], thresholds={"straggler": {"min_step_share": 0.1}})
    options = "--select straggler --threshold straggler.min_step_share=0.1"
    assert open_command(analysis, 2) == f"commtrace open 'a b' c {options} --finding 2"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["open", "x", "--offline"], "pip install 'commtrace[ui]'"),
        (["open", "x", "--save", "a.json"], "end its name in .pftrace.gz"),
        (["open", "/nowhere"], "/nowhere"),
    ],
)
def test_what_cannot_be_opened_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize("ending", [".pftrace.gz", ".trace.json.gz"])
def test_analyze_writes_a_timeline(recorded: Path, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"run{ending}"
    assert main(["analyze", str(recorded / "all_reduce" / "gloo-4"), "-o", str(file)]) == 0
    assert [its.name for its in tmp_path.iterdir()] == [file.name]
    assert file.read_bytes().startswith(b"\x1f\x8b")


def test_open_from_the_command_line(
    measured: Callable[[Path], Run], recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(recorded / "all_reduce" / "gloo-4")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("commtrace.viewer.opening.PORT", 0)
        status = main(["open", folder, "--no-browser", "--finding", "1", "--select", "desync"])
    assert status == 2  # nothing is wrong with it
    assert "--finding 1: the run has 0 findings" in capsys.readouterr().err
