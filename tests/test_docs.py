"""The generated pages say what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path

from commtrace.rules import RULES

DOCS = Path(__file__).parent.parent / "docs"


def test_generated_pages_are_current() -> None:
    pages: dict[str, str] = runpy.run_path(str(DOCS / "generate.py"))["pages"]()
    stale = [name for name, text in pages.items() if (DOCS / name).read_text("utf-8") != text]
    assert not stale, "run `make docs`"


def test_each_rule_has_a_page_and_no_other_has() -> None:
    assert {page.stem for page in (DOCS / "rules").iterdir()} == set(RULES)
