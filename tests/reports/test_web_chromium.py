"""The page under the hand of who reads it, in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commtrace.reports.formats import html
from commtrace.run import Run
from commtrace.synthetic import Tiny
from tests.browser import Browser, Page

NAME = "<img src=x onerror=alert(1)>"
TIMELINE = "document.getElementById('timeline').timeline"


def trained() -> str:
    """Four ranks, six steps, rank 2 late to every all_reduce; a kernel with a hostile name."""
    run = Tiny(4)
    for step in range(6):
        for rank in range(4):
            start = step * 10_000
            compute = 6_000 if rank == 2 else 2_000
            run.step(rank, step, start, 10_000)
            run.kernel(rank, start, compute, name=NAME, step=step)
            begin = start + compute
            run.collective(
                rank, "all_reduce", begin, start + 9_000 - begin, size=1 << 20 + step, step=step
            )
    return html.render(Run(run.trace(), NAME).analysis())


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("report") / "report.html"
    written.write_text(trained(), encoding="utf-8")
    return written


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    its = browser.page(file.as_uri())
    its.wait_for(TIMELINE)
    yield its
    assert its.problems == []
    assert its.evaluate("performance.getEntriesByType('resource').length") == 0
    its.close()


def at(page: Page, event: int) -> tuple[float, float]:
    """The middle of an event on the screen; brings the timeline into view."""
    page.evaluate("document.querySelector('.stage').scrollIntoView({behavior: 'instant'})")
    x, y = page.evaluate(
        f"""(() => {{
          const t = {TIMELINE}, box = t.canvas.getBoundingClientRect(), e = t.events;
          t.view.draw();
          const x = t.view.x_of((e.start[{event}] + e.end[{event}]) / 2);
          return [box.left + x, box.top + t.view.y_of(e.laneOf({event})) + 8];
        }})()"""
    )
    return x, y


def test_zoom_and_pan_reach_a_nanosecond(page: Page) -> None:
    whole = page.evaluate(f"{TIMELINE}.view.span")
    x, y = at(page, 0)
    page.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400, modifiers=2)
    page.wait_for(f"{TIMELINE}.view.span < {whole}")
    page.evaluate(f"{TIMELINE}.canvas.focus()")
    for _ in range(30):
        page.press("+")
    assert page.evaluate(f"{TIMELINE}.view.span") == 20
    before = page.evaluate(f"{TIMELINE}.view.left")
    page.press("ArrowRight")
    assert page.evaluate(f"{TIMELINE}.view.left") == before + 2
    page.press("0")
    assert page.evaluate(f"{TIMELINE}.view.span") == whole


def test_a_name_under_the_pointer_is_text(page: Page) -> None:
    x, y = at(page, 0)
    page.mouse("mouseMoved", x, y)
    page.wait_for("!document.getElementById('tip').hidden")
    assert page.evaluate("document.getElementById('tip').textContent").startswith(NAME)
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    assert page.evaluate("document.querySelector('h1').textContent") == NAME


def test_an_operation_is_highlighted_on_every_rank(page: Page) -> None:
    event = page.evaluate(f"{TIMELINE}.events.operation.findIndex((one) => one > 0)")
    x, y = at(page, event)
    for kind in ("mousePressed", "mouseReleased"):
        page.mouse(kind, x, y, button="left", clickCount=1)
    page.wait_for(f"{TIMELINE}.view.selected.length")
    lanes = f"{TIMELINE}.view.selected.map((i) => {TIMELINE}.events.laneOf(i).rank)"
    assert page.evaluate(lanes) == [0, 1, 2, 3]
    told = page.evaluate("document.querySelector('.details').innerText")
    assert "2 (last)\t4,000,000 ns\t0 ns\t3,000,000 ns" in told
    assert "4,000,000 ns\t3,000,000 ns" in told
    page.evaluate(f"{TIMELINE}.canvas.focus()")
    page.press("Escape")
    assert page.evaluate(f"{TIMELINE}.view.selected") == []


def test_a_finding_is_shown_in_the_timeline(page: Page) -> None:
    page.click(".finding button")
    start, end = page.evaluate(f"{TIMELINE}.view.range")
    assert 0 <= start < end <= page.evaluate(f"{TIMELINE}.events.span")


def test_tables_sort_and_filter(page: Page) -> None:
    table = "[...document.querySelectorAll('#tables details')].find("
    table += "(one) => one.textContent.startsWith('Devices'))"
    ranks = f"[...({table}).querySelector('tbody').rows].filter((row) => !row.hidden)"
    ranks += ".map((row) => row.cells[0].textContent)"
    heads = f"[...({table}).querySelectorAll('th button')]"
    compute = f"{heads}.find((head) => head.textContent === 'compute')"
    page.evaluate(f"{compute}.click()")
    assert page.evaluate(ranks)[0] == "2", "the rank that computes most"
    page.evaluate(f"{compute}.click()")
    assert page.evaluate(ranks)[-1] == "2"
    page.evaluate(
        f"""(() => {{
          const input = ({table}).querySelector('input');
          input.value = '60.0 MS';
          input.dispatchEvent(new Event('input'));
        }})()"""
    )
    assert page.evaluate(ranks) == []
    page.evaluate(
        f"""(() => {{
          const input = ({table}).querySelector('input');
          input.value = '36.0 MS cuda';
          input.dispatchEvent(new Event('input'));
        }})()"""
    )
    assert page.evaluate(ranks) == ["2"]


def test_the_theme_can_be_changed(page: Page) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(colour)
    page.click("#theme")
    assert page.evaluate(colour) != light


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_window(browser: Browser, file: Path, width: int) -> None:
    page = browser.page(file.as_uri(), width=width)
    page.wait_for(TIMELINE)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()


def test_paper_and_readers_without_scripts_get_a_picture(page: Page) -> None:
    picture = "document.querySelector('.static-timeline').offsetHeight"
    assert page.evaluate(picture) == 0
    page.send("Emulation.setEmulatedMedia", media="print")
    assert page.evaluate(picture) > 100
    assert page.evaluate("document.getElementById('timeline').offsetHeight") == 0
    page.send("Emulation.setEmulatedMedia", media="screen")
    page.evaluate("document.documentElement.className = ''")
    assert page.evaluate(picture) > 100


MANY = """(() => {
  const n = 1600;
  const lanes = [...Array(64).keys()].map((rank) => [rank, "cuda:0", 7, n]);
  const labels = [[0, "gemm"], [2, "all_reduce"]];
  const values = [() => 1000, () => 900, (i) => (i % 2) * 300, (i) => i % 2];
  const next = (count) => {
    const value = values.shift() ?? (() => 0);
    return Float64Array.from({ length: count }, (_, i) => value(i));
  };
  const data = { span: 1000 * n, labels, lanes, steps: [], kinds: [], operations: 0 };
  const view = new View(document.createElement("canvas"), new Events(data, { next }));
  view.resize(1280, 1100);
  return [1, 2, 8, 64, 512].map((part) => {
    view.span = data.span / part;
    const times = [...Array(7)].map(() => (view.draw(), view.frame_ms));
    let boxes = 0;
    view.context.fillRect = () => boxes++;
    view.draw();
    delete view.context.fillRect;
    return [boxes, Math.min(...times)];
  });
})()"""


def test_a_hundred_thousand_events_are_no_more_boxes_than_pixels(page: Page) -> None:
    lanes, pixels = 72, 1280 - 168
    assert max(boxes for boxes, _ in page.evaluate(MANY)) <= lanes * pixels
