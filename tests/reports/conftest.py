"""What tests of reports share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

EXPECTED = Path(__file__).parent / "expected"


@pytest.fixture
def expect(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Holds a text against a file of ``expected``, or writes it there under ``--regenerate``."""

    def check(name: str, shown: str) -> None:
        file = EXPECTED / name
        if request.config.getoption("--regenerate"):
            file.write_text(shown, encoding="utf-8")
        assert shown == file.read_text("utf-8"), "pytest tests/reports --regenerate writes it anew"

    return check
