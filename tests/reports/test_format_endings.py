from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from commtrace.reports import FORMATS as REPORTS
from commtrace.reports import Formats
from commtrace.reports.comparison import FORMATS as COMPARISONS


@pytest.mark.parametrize("formats", [REPORTS, COMPARISONS], ids=["analyze", "compare"])
def test_the_endings_are_those_of_the_formats(formats: Formats[Any]) -> None:
    known = tuple(filter(None, (formats.named(name).SUFFIX for name in formats.names)))
    assert formats.suffixes() == known
    assert len(known) >= 4


def test_a_format_is_found_without_what_it_is_made_from() -> None:
    code = (
        "import sys; from pathlib import Path; from commtrace.reports import FORMATS;"
        "print(FORMATS.of_file(Path('a.txt')), 'pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "text False\n"
