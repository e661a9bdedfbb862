"""The generated pages say what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize(
    "name",
    ["columns.md", "rules.md", "workloads.md", "../commtrace/reports/analysis.schema.json"],
)
def test_a_generated_page_is_current(name: str) -> None:
    pages = runpy.run_path(str(DOCS / "generate.py"))["pages"]()
    assert (DOCS / name).read_text(encoding="utf-8") == pages[name], "run `make docs`"
