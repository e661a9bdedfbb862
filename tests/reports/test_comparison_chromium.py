"""A comparison's page in Chromium: names stay text, nothing is asked for, it fits a phone."""

from __future__ import annotations

from pathlib import Path

import pytest

from commtrace.comparison import compare
from commtrace.reports.comparison import html
from commtrace.run import Run
from commtrace.synthetic import Tiny
from tests.browser import Browser

NAME = "<img src=x onerror=alert(1)>"


def run(compute_us: float) -> Run:
    """Two ranks, six steps with a hostile kernel; an operation nobody knows is as hostile."""
    tiny = Tiny(2)
    for step in range(6):
        start = 10_000.0 * step
        for rank in (0, 1):
            tiny.step(rank, step, start, 9_000)
            tiny.kernel(rank, start, compute_us * (1 + rank), name=NAME, step=step)
            begin = start + compute_us * (1 + rank)
            tiny.collective(rank, NAME, begin, start + 9_000 - begin, size=1 << 20, step=step)
    return Run(tiny.trace(), NAME)


@pytest.mark.parametrize("width", [390, 1280])
def test_names_stay_text_and_nothing_is_loaded(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    file = tmp_path / "comparison.html"
    text = html.render(compare(run(1_000), run(3_000)).compared)
    file.write_text(text, encoding="utf-8")
    page = browser.page(file.as_uri(), width=width)
    assert page.evaluate("document.querySelectorAll('img, script').length") == 0
    assert page.evaluate("performance.getEntriesByType('resource').length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("document.querySelectorAll('figure > svg').length") == 2
    assert NAME in page.evaluate("document.body.textContent")
    assert page.problems == []
    page.close()
