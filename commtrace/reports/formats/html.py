"""The report as a page of its own: one file, no request to anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commtrace.reports import Look

if TYPE_CHECKING:
    from commtrace.analysis import Analysis

__all__ = ["SUFFIX", "render"]

SUFFIX = ".html"

_ANY = Look()


def render(analysis: Analysis, look: Look = _ANY) -> str:  # noqa: ARG001 - a page has its own
    """The whole analysis as one HTML document of at most 4 MB."""
    from commtrace.reports.web.document import document

    return document(analysis)
