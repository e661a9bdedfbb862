"""Every rule there is, by name."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from commtrace.errors import UsageError
from commtrace.rules._rule import Rule

__all__ = ["RULES", "rule_named"]


def _found() -> dict[str, type[Rule]]:
    rules = {}
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not module.name.startswith("_"):
            home = import_module(f"commtrace.rules.{module.name}")
            (rule,) = (
                thing
                for thing in vars(home).values()
                if isinstance(thing, type) and issubclass(thing, Rule) and thing is not Rule
            )
            rules[rule.name()] = rule
    return dict(sorted(rules.items()))


RULES: Mapping[str, type[Rule]] = _found()
"""Rule classes by name."""


def rule_named(name: str) -> type[Rule]:
    """The rule of a name. UsageError names the near ones."""
    try:
        return RULES[name]
    except KeyError:
        near = ", ".join(get_close_matches(name, RULES, n=3))
        remedy = f"did you mean {near}?" if near else "`commtrace explain` lists them"
        raise UsageError(f"no rule is called {name!r}; {remedy}") from None
