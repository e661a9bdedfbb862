"""What every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


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
