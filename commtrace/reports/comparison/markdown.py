"""A comparison as Markdown, with GitHub's tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.comparing.gate import Gate
from commtrace.reports import Look, content
from commtrace.reports.content import compared_tables, comparison
from commtrace.reports.formats.markdown import bullets, escaped, grid

if TYPE_CHECKING:
    from commtrace.comparing.compared import Compared

__all__ = ["SUFFIX", "render"]

SUFFIX = ".md"
_ANY, _NONE = Look(), Gate()


def render(compared: Compared, gate: Gate = _NONE, look: Look = _ANY) -> str:  # noqa: ARG001 - a document has its own
    """The same facts as in the terminal, as a document."""
    lines = [f"# {escaped(comparison.title(compared))}"]
    lines += ["", f"**{escaped(comparison.headline(compared))}**"]
    if failure := gate.failed(compared):
        lines += ["", f"**Gate: failed: {escaped(failure)}**"]
    for line in comparison.summary(compared):
        lines += ["", escaped(line)]
    for section in compared_tables.sections(compared):
        lines += ["", *grid(section)]
    for name, texts in comparison.findings(compared):
        lines += bullets(name, texts)
    lines += bullets("Notes", content.notes(compared.notes))
    return "\n".join(lines).rstrip("\n") + "\n"
