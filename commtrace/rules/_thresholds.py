"""The rules that a user names, and the thresholds that a user sets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from commtrace import config
from commtrace.errors import UsageError
from commtrace.rules._diagnose import configured
from commtrace.rules._registry import rule_named

__all__ = ["Thresholds", "check", "thresholds"]

Thresholds = Mapping[str, Mapping[str, Any]]
"""{rule: {field: value}}; a value may be text."""


def thresholds(given: Thresholds) -> Thresholds:
    """The configuration's thresholds, with those given in their place.

    Raises UsageError, which names the configuration's file, for what is unknown in it.
    """
    file, known = config.rule_thresholds()
    for name, values in known.items():
        try:
            configured(name, values)
        except UsageError as error:
            raise UsageError(f"{file}: tool.commtrace.rules: {error}") from None
    return known | {name: {**known.get(name, {}), **values} for name, values in given.items()}


def check(select: Collection[str], ignore: Collection[str], given: Thresholds) -> None:
    """Raise UsageError for a rule or a threshold that there is not."""
    for name in (*select, *ignore):
        rule_named(name)
    for name, values in thresholds(given).items():
        configured(name, values)
