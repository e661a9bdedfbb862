"""What several commands take: a run's files, and which rules to ask, by which thresholds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from commtrace.errors import UsageError

__all__ = ["Ignore", "Paths", "Select", "Thresholds", "rule_gists", "rule_names", "rules_wanted"]


_GIST = re.compile(r'^class \w+\(Rule\b.*\n    """(.+)', re.M)


def rule_names() -> list[str]:
    """The rules' names, without what importing them loads."""
    return sorted(_files())


def rule_gists() -> dict[str, str]:
    """The rules' names, and what the documentation of each begins with."""
    texts = {name: file.read_text(encoding="utf-8") for name, file in sorted(_files().items())}
    return {name: gist[1] for name, text in texts.items() if (gist := _GIST.search(text))}


def _files() -> dict[str, Path]:
    files = (Path(__file__).parent.parent / "rules").glob("[!_]*.py")
    return {file.stem.replace("_", "-"): file for file in files}


Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH", help="Trace files of one run, folders of them, or globs."),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RULE",
        autocompletion=rule_names,
        help="Check this rule only; repeat it for several; default: all rules.",
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RULE",
        autocompletion=rule_names,
        help="Leave this rule out; repeat it for several; default: none.",
    ),
]
Thresholds = Annotated[
    list[str] | None,
    typer.Option(
        "--threshold",
        metavar="RULE.FIELD=VALUE",
        help="Set a rule's threshold; default: pyproject.toml's, else what "
        "`commtrace explain RULE` shows.",
    ),
]


def rules_wanted(
    select: list[str] | None, ignore: list[str] | None, thresholds: list[str] | None
) -> dict[str, Any]:
    """The same as ``Run.analysis`` takes it. UsageError for what is no threshold."""
    return {
        "select": select or (),
        "ignore": ignore or (),
        "thresholds": _thresholds(thresholds or ()),
    }


def _thresholds(texts: Sequence[str]) -> dict[str, dict[str, str]]:
    thresholds: dict[str, dict[str, str]] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        rule, dot, field = key.partition(".")
        if not (rule and dot and field and equals):
            raise UsageError(f"--threshold {text}: write it as RULE.FIELD=VALUE")
        thresholds.setdefault(rule, {})[field] = value
    return thresholds
