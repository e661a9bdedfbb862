"""What the documents show runs, and prints what they say."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest
import typer.main

import commtrace as ct
from commtrace.cli import app
from commtrace.reports.formats import text
from tests.pages import PAGES, ROOT, Block, Command, blocks, commands

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONSOLES = [
    pytest.param(command, id=f"{page} {command.line[:60]}")
    for page in PAGES
    for command in commands(page)
    if command.line.startswith("commtrace ")
]


@pytest.mark.parametrize("command", CONSOLES)
def test_a_command_has_only_options_that_there_are(command: Command) -> None:
    name, *arguments = command.arguments[1:]
    group = typer.main.get_command(app)
    assert hasattr(group, "commands")
    assert group.commands[name].make_context(name, arguments)


@pytest.mark.parametrize("page", PAGES)
def test_code_is_code(page: str) -> None:
    for block in blocks(page):
        if block.language == "python":
            ast.parse(block.text)
        if block.language == "toml":
            tomllib.loads(block.text)
        if block.language == "json":
            json.loads(block.text)


def test_the_readmes_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (code,) = (block for block in blocks("README.md", "python") if "ct.load" in block.text)
    exec(compile(code.text, "README.md", "exec"), {})


def test_the_notebook_of_comparing_runs(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "base").symlink_to(recorded / "decomposed_all_reduce" / "gloo-4")
    (tmp_path / "change").symlink_to(recorded / "decomposed_all_reduce" / "gloo-4-full-output")
    monkeypatch.chdir(tmp_path)
    (code,) = (block for block in blocks("docs/compare.md", "python") if "waterfall" in block.text)
    exec(compile(code.text, "compare.md", "exec"), {"ct": ct})


ANSWERS = [block for block in blocks("README.md", "") if "traces/" in block.above[-300:]]


@pytest.mark.parametrize("block", ANSWERS, ids=["copies", "decomposition"])
def test_the_readmes_answers_are_what_analyze_prints(block: Block) -> None:
    folder = re.findall(r"`(traces/[\w/-]+)`", block.above)[-1]
    analysis = ct.load(ROOT / folder).analysis()
    assert " ".join(block.text.split()) in " ".join(text.render(analysis).split())
