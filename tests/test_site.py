"""The documentation as a site: it is built without a warning, and asks nobody for anything."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.browser import Browser
from tests.lacking import lacking
from tests.pages import ROOT

SEEN = ("docs/index", "docs/first-fix", "docs/columns", "docs/rules/straggler")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as ``make docs`` builds it: a broken link is an error."""
    python = ROOT / ".venv-docs" / "bin" / "python"
    if not python.exists():
        lacking("Sphinx (make docs)")
    made = tmp_path_factory.mktemp("site")
    command = [python, "-m", "sphinx", "-W", "-q", "-c", "docs", "-d", made / "trees", ".", made]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return made


def test_every_page_is_there_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {page.relative_to(site).with_suffix("") for page in site.rglob("*.html")}
    for source in [*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")]:
        assert source.relative_to(ROOT).with_suffix("") in pages
    loaded = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=\"(\w+:|//)")
    for page in site.rglob("*.html"):
        assert not loaded.search(page.read_text("utf-8")), page


@pytest.mark.parametrize("width", [1280, 390])
def test_it_reads_from_disk_on_wide_and_narrow_screens(
    site: Path, browser: Browser, width: int
) -> None:
    for name in SEEN:
        page = browser.page((site / f"{name}.html").as_uri(), width=width)
        assert page.problems == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.close()


def test_it_can_be_searched_from_disk(site: Path, browser: Browser) -> None:
    page = browser.page(f"{(site / 'search.html').as_uri()}?q=straggler")
    page.wait_for("document.querySelectorAll('#search-results li a').length > 0")
    assert page.problems == []
    page.close()
