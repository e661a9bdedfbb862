"""The way from install to the first fix: its commands run, and print what the page shows.

``pytest tests/test_first_fix.py --regenerate`` writes what is printed into the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commtrace.cli import main
from commtrace.record import record_program
from commtrace.run import load
from tests.pages import ROOT, Command, commands

PAGE = ROOT / "docs" / "first-fix.md"
SHOWN = [
    pytest.param(command, id=command.line)
    for command in commands("docs/first-fix.md")
    if command.line.startswith("commtrace") and not command.line.startswith("commtrace record")
]


@pytest.fixture
def recordings(recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two that the page makes, made beforehand, where it makes them."""
    (tmp_path / "out").mkdir()
    for name, side in (("slow", "before"), ("fixed", "after")):
        (tmp_path / "out" / name).symlink_to(recorded / "slow_ddp" / side)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.usefixtures("recordings")
@pytest.mark.parametrize("command", SHOWN)
def test_a_command_prints_what_is_shown(
    command: Command, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    assert main(command.arguments[1:]) == 0
    printed = capsys.readouterr().out.splitlines()
    shown = command.shown.splitlines()
    found = list(_excerpt(shown, printed))
    if request.config.getoption("--regenerate"):
        old, new = ("\n".join([f"$ {command.line}", *lines]) for lines in (shown, found))
        PAGE.write_text(PAGE.read_text("utf-8").replace(old, new), "utf-8")
    else:
        assert found == shown


def _excerpt(shown: list[str], printed: list[str]) -> Iterator[str]:
    """As many lines of what is printed as are shown; what follows ``…`` begins as it does there."""
    place = 0
    for line, before in zip(shown, ["", *shown], strict=False):
        if line == "…":
            yield line
            continue
        if before == "…":
            alike = (i for i in range(place, len(printed)) if printed[i][:12] == line[:12])
            place = next(alike, len(printed))
        yield from printed[place : place + 1]
        place += 1


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded")
def test_what_is_recorded_here_has_the_fault_of_the_page(tmp_path: Path) -> None:
    command = [str(ROOT / "examples" / "slow_ddp.py"), "--steps", "16"]
    folder = record_program(command, world_size=2, out=tmp_path / "slow")
    run = load(folder)
    first = run.diagnose().findings[0]
    assert (first.rule, first.ranks, first.cause) == ("straggler", (0,), "checkpoint")
