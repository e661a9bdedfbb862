"""What several commands take: a run's files, and which rules to ask, by which thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from commtrace.errors import UsageError

__all__ = ["Ignore", "Paths", "Select", "Thresholds", "rule_names", "rules_wanted"]


def rule_names() -> list[str]:
    """The rules' names, without what importing them loads."""
    files = (Path(__file__).parent.parent / "rules").glob("[!_]*.py")
    return sorted(file.stem.replace("_", "-") for file in files)


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
