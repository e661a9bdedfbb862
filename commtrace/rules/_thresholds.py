"""What a user sets of the rules: on the command line, in Python and in the configuration."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from math import isnan
from typing import Any

from commtrace import config
from commtrace.errors import UsageError
from commtrace.rules._all import rule_named
from commtrace.rules._rule import Rule

__all__ = ["Thresholds", "check", "configured", "thresholds"]

_OLD_NAMES = {
    "min_share": ("min_step_share", 1.0),
    "min_share_pct": ("min_step_share", 0.01),
    "large_share_pct": ("large_step_share", 0.01),
    "held_up_share": ("min_step_share", 1.0),
}
"""Names that thresholds had before 1.0: today's, and the factor to its unit."""
_RETIRED = {
    **dict.fromkeys(
        ("straggler", "host-late", "device-late", "late-root", "late-sender", "late-receiver"),
        ("min_operations",),
    ),
    "jitter": ("min_operations", "min_ratio"),
}
"""Thresholds that rules had before 1.0, and that have no meaning any more."""


def _renamed(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A rule's thresholds by the names of today. Warns of the old ones."""
    known = rule_named(name).thresholds()
    today = dict(values)
    for old in _RETIRED.get(name, ()):
        if today.pop(old, None) is not None:
            warnings.warn(
                f"{name}.{old} has no meaning any more, and is ignored: the run is replayed; the "
                "name goes with 1.0",
                FutureWarning,
                stacklevel=2,
            )
    for old in tuple(today):
        new, factor = _OLD_NAMES.get(old, (old, 1.0))
        if old in known or new not in known:
            continue
        value = _value(rule_named(name), old, float, today.pop(old)) * factor
        today.setdefault(new, value)
        unit = ", a fraction" if factor != 1 else ""
        warnings.warn(
            f"{name}.{old} is now {name}.{new}{unit}: set {new} = {value:g}; "
            "the old name goes with 1.0",
            FutureWarning,
            stacklevel=2,
        )
    return today


def configured(name: str, values: Mapping[str, Any]) -> Rule:
    """The rule of a name with these thresholds. UsageError for an unknown or a bad one.

    Old names of thresholds are taken, with a FutureWarning.
    """
    rule = rule_named(name)
    values = _renamed(name, values)
    known: dict[str, type[Any]] = {n: type(its) for n, its in rule.thresholds().items()}
    for field in values:
        if field not in known:
            choices = ", ".join(known) or "none"
            raise UsageError(f"{name} has no threshold {field!r}; it has: {choices}")
    return rule(**{field: _value(rule, field, known[field], values[field]) for field in values})


def _value(rule: type[Rule], field: str, kind: type[Any], given: Any) -> Any:
    """What is given, maybe as text, as the field's type."""
    try:
        value = kind(given)
        lossless = isinstance(given, str) or (value == given and not isinstance(given, bool))
        if lossless and not (isinstance(value, float) and isnan(value)):
            return value
    except (TypeError, ValueError, OverflowError):
        pass
    article = "an" if kind is int else "a"
    raise UsageError(f"{rule.name()}.{field} must be {article} {kind.__name__}, not {given!r}")


Thresholds = Mapping[str, Mapping[str, Any]]
"""{rule: {field: value}}; a value may be text."""


def thresholds(given: Thresholds) -> Thresholds:
    """The configuration's thresholds, with those given in their place.

    Raises UsageError, which names the configuration's file, for what is unknown in it.
    """
    file, configuration = config.rule_thresholds()
    known: dict[str, dict[str, Any]] = {}
    for name, values in configuration.items():
        try:
            known[name] = _renamed(name, values)
            configured(name, known[name])
        except UsageError as error:
            raise UsageError(f"{file}: tool.commtrace.rules: {error}") from None
    over = {name: _renamed(name, values) for name, values in given.items()}
    return known | {name: {**known.get(name, {}), **values} for name, values in over.items()}


def check(select: Collection[str], ignore: Collection[str], given: Thresholds) -> None:
    """Raise UsageError for a rule or a threshold that there is not."""
    for name in (*select, *ignore):
        rule_named(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # `diagnose` warns, too
        asked = thresholds(given)
    for name, values in asked.items():
        configured(name, values)
