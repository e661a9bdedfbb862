"""The report as Markdown, with GitHub's tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from commtrace.reports import Look, content
from commtrace.reports.content import findings
from commtrace.reports.content.open_command import (
    numbered_findings,
    open_command_shown,
    range_in_run,
)
from commtrace.reports.content.prose import paragraphs
from commtrace.reports.content.tables import on_one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commtrace.analysis import Analysis
    from commtrace.diagnosis import Explanation, Verdict
    from commtrace.reports.content.tables import Section

__all__ = ["SUFFIX", "bullets", "escaped", "explain", "grid", "render"]

SUFFIX = ".md"

_ANY = Look()
_ALIGNED = {"<": ":--", ">": "--:"}
# Underscores within a word, and most points, mean nothing.
_SPECIAL = re.compile(
    r"[\\`*\[\]#!|~$@]|(?<!\w)_|_(?!\w)|:(?=//)|\.(?=[^\W\d])|(?<=\d)[.)](?=\s|$)|^[-+=]"
)
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def render(analysis: Analysis, look: Look = _ANY) -> str:  # noqa: ARG001 - a document has its own
    """The same facts as in the terminal, as a document."""
    name, *facts = map(escaped, content.headline(analysis))
    lines = [f"# {name}", *(line for fact in facts for line in ("", fact))]
    for line in content.verdict(analysis):
        lines += ["", escaped(line)]
    for section in content.sections(analysis, bar=0):
        lines += ["", *grid(section)]
    lines += bullets("Notes", content.notes(analysis.notes))
    if found := list(_findings(analysis.verdict, analysis)):
        lines += ["", "## Findings", "", *found]
    for title, unfound in content.unfound(analysis):
        lines += bullets(title, unfound)
    return "\n".join(lines).rstrip("\n") + "\n"


def explain(explanation: Explanation) -> str:
    """What a rule means, its thresholds, and what it says of its worked example."""
    lines: list[str] = []
    for heading, texts in paragraphs(explanation.documentation):
        lines += ["", f"**{heading}**"] if heading else []
        lines += [line for text in texts for line in ("", _prose(text))]
    if explanation.thresholds:
        defaults = explanation.thresholds.items()
        lines += ["", "| threshold | default |", "| --- | --: |"]
        lines += [f"| `{name}` | {value} |" for name, value in defaults]
    example = " ".join(explanation.example.split())
    lines += ["", f"**Example.** {_prose(example)}", "", *_findings(explanation.verdict)]
    return "\n".join(lines).strip("\n")


def _findings(verdict: Verdict, analysis: Analysis | None = None) -> Iterator[str]:
    numbered = dict(numbered_findings(verdict))
    for number, text in enumerate(findings.texts(verdict), 1):
        yield f"{number}. {escaped(text.summary)}"
        yield from (f"   - {escaped(line)}" for line in text.lines)
        if analysis is not None:
            when = escaped(range_in_run(analysis, numbered[number]))
            yield f"   - {when}: {_code(open_command_shown(analysis, number))}"
    for line in findings.closing(verdict):
        yield from ("", escaped(line))


def bullets(title: str, lines: list[str]) -> list[str]:
    """A list under a title; nothing if it is empty."""
    items = [f"- {escaped(line)}" for line in lines]
    return ["", f"## {title}", "", *items] if items else []


def grid(section: Section) -> Iterator[str]:
    """A table under its title, and what else it says."""
    yield from (f"## {section.title}", "")
    yield _row([on_one_line(name) for name, _ in section.columns])
    yield _row([_ALIGNED[align] for _, align in section.columns])
    yield from (_row([escaped(cell) for cell in row]) for row in section.cells)
    for line in section.footer:
        yield from ("", line)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _prose(text: str) -> str:
    """Documentation, whose ``code`` becomes code."""
    parts = text.split("``")
    return "".join(f"`{part}`" if i % 2 else escaped(part) for i, part in enumerate(parts))


def _code(text: str) -> str:
    """As it is, whatever backticks are in it."""
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def escaped(text: str) -> str:
    """Plain text: nothing in it is markup, a table's bar, a link or HTML."""
    plain = _SPECIAL.sub(r"\\\g<0>", text.replace("\n", ", "))
    return re.sub("[&<>]", lambda match: _HTML[match.group()], plain)
