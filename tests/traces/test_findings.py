"""What is found in each shipped recording, by rule, confidence and ranks: ``traces/findings.json``.

A finding that comes or goes must be looked at: ``pytest tests/traces/test_findings.py
--regenerate`` writes the file anew, and its diff is what the change did to traces that no test
of its own had in mind. Amounts are held elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from commtrace.run import Run

TRACES = Path(__file__).parents[2] / "traces"
FOUND = TRACES / "findings.json"
FOLDERS = sorted(path.parent for path in TRACES.glob("*/*/expected.json"))


def _name(folder: Path) -> str:
    return folder.relative_to(TRACES).as_posix()


def _told(run: Run) -> list[str]:
    """Each finding, a line: ``host-late, high, ranks 0, under straggler``."""
    return [
        f"{finding.rule}, {finding.confidence}, ranks {' '.join(map(str, finding.ranks))}"
        + (f", under {finding.explained_by}" if finding.explained_by else "")
        for finding in run.diagnose().findings
    ]


@pytest.mark.parametrize("folder", FOLDERS, ids=_name)
def test_what_is_found(
    measured: Callable[[Path], Run], folder: Path, request: pytest.FixtureRequest
) -> None:
    told = _told(measured(folder))
    found = json.loads(FOUND.read_text("utf-8"))
    if request.config.getoption("--regenerate"):
        found[_name(folder)] = told
        FOUND.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")
    assert told == found.get(_name(folder)), "look at it; then --regenerate, and read the diff"


def test_no_more_than_these() -> None:
    assert sorted(json.loads(FOUND.read_text("utf-8"))) == [_name(folder) for folder in FOLDERS]
