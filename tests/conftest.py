"""What every test may use."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from commtrace import trace_tables as schema
from commtrace.measures import Measures
from commtrace.run import Run, load
from tests.browser import Browser, chromium
from tests.lacking import lacking

from . import preloaded_ranks

ROOT = Path(__file__).parent.parent

# A busy one is no failure.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """``pytest tests/reports --regenerate`` after a change of what reports say."""
    parser.addoption(
        "--regenerate", action="store_true", help="write expected texts anew; look at the diff"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What records for real first: begun last, one worker would end minutes behind the other."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test uses the user's cache, nor do the programs that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def broken_rules() -> Iterator[Callable[[str, Exception], str]]:
    """In tests a rule that breaks is no skipped one. What the program does instead."""
    from commtrace.rules import _ask as _diagnose

    def fails(name: str, error: Exception) -> str:
        raise AssertionError(f"{name} broke") from error

    with pytest.MonkeyPatch.context() as patch:
        original = _diagnose.broken
        patch.setattr(_diagnose, "broken", fails)
        yield original


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """Traces of public projects, where this machine has them."""
    folder = Path(os.environ.get("COMMTRACE_REAL_TRACES", ROOT.parent / "shared" / "traces"))
    if not folder.is_dir():
        pytest.skip("no folder of real traces")
    return folder


@pytest.fixture(scope="session")
def recorded() -> Path:
    """The recordings that the project ships."""
    return ROOT / "traces"


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium, where this machine has it."""
    program = chromium()
    if program is None:
        lacking("chromium")
    its = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield its
    its.close()


@pytest.fixture(scope="session")
def measured() -> Callable[[Path], Run]:
    """Reads a trace that many tests look at; what they all measure is measured once."""
    return cache(load)


@pytest.fixture(scope="session")
def rank_server() -> Iterator[socket.socket]:
    """Where ranks are forked that need not import torch anew."""
    with preloaded_ranks.rank_server() as server:
        yield server


@pytest.fixture
def preloaded(rank_server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process records is recorded by such ranks. Else they are like any."""
    start = partial(preloaded_ranks.start, rank_server)
    monkeypatch.setattr("commtrace.record.processes._start", start)


@pytest.fixture(scope="session")
def make_trace() -> Callable[..., Measures]:
    """Builds a Trace from rows that name only the columns that matter; see ``_make_trace``."""
    return _make_trace


_ORDINARY = {"rank": 0, "device": "cuda:0", "stream": 7, "thread": 1, "name": "name", "events": 1}


def _make_trace(*, notes: tuple[schema.Note, ...] = (), **tables: list[dict[str, Any]]) -> Measures:
    """``make_trace(kernels=[{...}], ...)``: other columns are ordinary, or null."""
    frames = {
        table.name: table.of_dicts(
            [
                {
                    column.name: row.get(column.name, _ORDINARY.get(column.name))
                    for column in table.columns
                }
                for row in tables.pop(table.name, [])
            ]
        )
        for table in schema.TABLES
    }
    assert not tables, "no such table"
    return Measures(**frames, notes=notes)
