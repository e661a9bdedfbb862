"""Perfetto's own importer, where node and the bundled UI are installed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.lacking import lacking
from tests.perfetto.trace_processor import Row, answers, lacks

Query = Callable[..., list[list[Row]]]


@pytest.fixture(scope="session")
def perfetto() -> Query:
    """``perfetto(trace, *queries)``: the rows of each query on the imported trace."""
    if missing := lacks():
        lacking(missing)
    return answers
