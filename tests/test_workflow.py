"""The workflow in the guide to comparing is valid, and its commands have the options it gives."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from commtrace.cli import app

GUIDE = Path(__file__).parent.parent / "docs" / "compare.md"
COMMAND = re.compile(r"commtrace (\w+) ([^)\n]*)")


@pytest.fixture(scope="module")
def steps() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    (text,) = re.findall(r"```yaml\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    workflow = yaml.safe_load(text)
    assert workflow[True] == "pull_request"  # the key is on, which YAML 1.1 takes for true
    its: list[dict[str, Any]] = workflow["jobs"]["compare"]["steps"]
    return its


def test_its_commands_and_options_exist(steps: list[dict[str, Any]]) -> None:
    commands: Any = get_command(app)
    found = [call for step in steps for call in COMMAND.findall(step.get("run", ""))]
    assert [name for name, _ in found] == ["record", "compare", "compare"]
    for name, text in found:
        words = shlex.split(text)
        if name == "record":
            words = words[: words.index("--")]  # what follows is the program's
        known = {option for its in commands.commands[name].params for option in its.opts}
        used = {word for word in words if word.startswith("-") and word != "--"}
        assert used
        assert used <= known


def test_what_it_writes_is_what_it_uploads(steps: list[dict[str, Any]]) -> None:
    written = [step["run"] for step in steps if " -o comparison" in step.get("run", "")]
    (uploaded,) = [step["with"]["path"] for step in steps if "upload" in step.get("uses", "")]
    assert any(f"-o {uploaded}" in run for run in written)
