"""Words that were given up do not come back, neither in what users read nor in the documents."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RETIRED = {
    r"untold(?!-operations)": "unknown",
    r"(?:could not|cannot) look": "is skipped: needs …",
    r"costs? at most": "potential saving",
    r"mending it would": "potential saving",
    r"made others wait": "wait caused",
    r"left no trace": "no trace file for",
    r"(?:stands?|stood) (?:still|idle)": "is idle, is stalled",
    r"(?:runs?|ran) nothing": "is idle",
    r"sticks? out behind": "exposed after",
    r"also seen as": "related",
    r"(?:it|rule|they) speaks?": "fires, reports",
    r"caught by waiting": "inherited lateness",
}
FOLDERS = (
    *("causal", "cli", "comparing", "matching", "metrics"),
    *("reader", "record", "reports", "rules", "viewer"),
)
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))]


def modules() -> list[str]:
    found = [ROOT / "commtrace" / folder for folder in FOLDERS]
    files = [file for folder in found for file in folder.rglob("*.py")]
    files += (ROOT / "commtrace").glob("*.py")
    return sorted(str(file.relative_to(ROOT)) for file in files)


def literals(source: str) -> Iterator[str]:
    """Every string of a module, as one line: docstrings, and texts that span several lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = (str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
            yield " ".join("".join(parts).split())
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield " ".join(node.value.split())


def prose(page: str) -> str:
    """A page without its examples, which are printed by commands."""
    return " ".join(re.sub(r"```.*?```", "", page, flags=re.DOTALL).split())


def retired(text: str) -> list[str]:
    return [
        f"{match[0]!r}: say {instead!r}"
        for phrase, instead in RETIRED.items()
        for match in re.finditer(rf"\b{phrase}\b", text, re.IGNORECASE)
    ]


def test_modules_say_nothing_in_retired_words() -> None:
    wrong = {
        name: found
        for name in modules()
        if (found := [w for t in literals((ROOT / name).read_text("utf-8")) for w in retired(t)])
    }
    assert not wrong


@pytest.mark.parametrize("page", PAGES)
def test_pages_say_nothing_in_retired_words(page: str) -> None:
    assert not retired(prose((ROOT / page).read_text("utf-8")))


def test_a_retired_phrase_is_found_over_lines_and_in_formatted_texts() -> None:
    source = 'x = f"{device} runs "\nx += f"{n} times it " f"stands "\\\n    "still"'
    assert {*retired(" | ".join(literals(source)))} == {"'stands still': say 'is idle, is stalled'"}
    assert not retired("the note untold-operations")
