"""A comparison for GitHub's jobs: an annotation, and a summary in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.comparing.gate import Gate
from commtrace.reports import Look
from commtrace.reports.comparison import markdown
from commtrace.reports.content import comparison

if TYPE_CHECKING:
    from commtrace.comparing.compared import Compared

__all__ = ["SUFFIX", "annotation", "render"]

SUFFIX = None
_ANY, _NONE = Look(), Gate()
_LEVELS = {"slower": "warning", "inconclusive": "notice", "same": "notice", "faster": "notice"}
_ESCAPES = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})


def render(compared: Compared, gate: Gate = _NONE, look: Look = _ANY) -> str:
    """Both, where there is no file for the summary."""
    return f"{annotation(compared, gate)}{markdown.render(compared, gate, look)}"


def annotation(compared: Compared, gate: Gate = _NONE) -> str:
    """A workflow command: an error if the gate fails, else a warning if it is slower."""
    level = "error" if gate.failed(compared) else _LEVELS[compared.verdict]
    texts = [comparison.headline(compared), *filter(None, [comparison.why(compared)])]
    message = ". ".join(texts).translate(_ESCAPES)
    return f"::{level} title=commtrace compare::{message}\n"
