"""The report as Markdown, with GitHub's tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from commtrace.reports import content

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commtrace.analysis import Analysis
    from commtrace.reports.tables import Section

__all__ = ["render"]

_ALIGNED = {"<": ":--", ">": "--:"}
# Underscores within a word, and most points, mean nothing.
_SPECIAL = re.compile(
    r"[\\`*\[\]#!|~$@]|(?<!\w)_|_(?!\w)|:(?=//)|\.(?=[^\W\d])|(?<=\d)[.)](?=\s|$)|^[-+=]"
)
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def render(analysis: Analysis) -> str:
    """The same facts as in the terminal, as a document."""
    name, *facts = map(_escaped, content.headline(analysis))
    lines = [f"# {name}", *(line for fact in facts for line in ("", fact))]
    for section in content.sections(analysis, bar=0):
        lines += ["", *_section(section)]
    if notes := content.notes(analysis):
        lines += ["", "## Notes", "", *(f"- {_escaped(note)}" for note in notes)]
    return "\n".join(lines) + "\n"


def _section(section: Section) -> Iterator[str]:
    yield from (f"## {section.title}", "")
    yield _row([name.replace("\n", " ") for name, _ in section.columns])
    yield _row([_ALIGNED[align] for _, align in section.columns])
    yield from (_row([_escaped(cell) for cell in row]) for row in section.cells)
    for line in section.footer:
        yield from ("", line)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Plain text: nothing in it is markup, a table's bar, a link or HTML."""
    plain = _SPECIAL.sub(r"\\\g<0>", text.replace("\n", ", "))
    return re.sub("[&<>]", lambda match: _HTML[match.group()], plain)
