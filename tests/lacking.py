"""What a machine lacks to run a test."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def lacking(program: str) -> NoReturn:
    """Skip, but where nothing may be skipped: there .ci/run installs it."""
    if os.environ.get("COMMTRACE_SKIPS_NOTHING"):
        pytest.fail(f"{program} is not installed")
    pytest.skip(f"{program} is not installed")
