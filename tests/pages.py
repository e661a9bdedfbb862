"""The documents' examples, as the tests read them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGES", "ROOT", "Block", "Command", "blocks", "commands"]

ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *(f"docs/{p.name}" for p in sorted(ROOT.glob("docs/*.md"))),
)
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and what stands above it."""

    language: str
    text: str
    above: str


@dataclass(frozen=True)
class Command:
    """A command line without its comment, and the output that the page shows below it."""

    line: str
    shown: str

    @property
    def arguments(self) -> list[str]:
        """Its words."""
        return shlex.split(self.line)


def blocks(page: str, language: str | None = None) -> Iterator[Block]:
    """The fenced blocks of a page, in one language if it is given."""
    text = (ROOT / page).read_text("utf-8")
    for match in _FENCED.finditer(text):
        if language in (None, match[1]):
            yield Block(match[1], match[2], text[: match.start()])


def commands(page: str) -> Iterator[Command]:
    """The lines behind ``$`` of a page's consoles."""
    for block in blocks(page, "console"):
        text = block.text.replace("\\\n", " ")
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, shown = part.partition("\n")
            yield Command(re.sub(r"\s+#.*", "", line).strip(), shown)
