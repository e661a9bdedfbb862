"""Rules: one file is one diagnosis, found by being there.

A rule is a frozen struct whose fields are its thresholds, whose docstring is its
documentation, and whose ``check`` yields findings from a trace. ``bad()`` is a tiny trace
on which it must fire, ``good()`` the nearest one on which it must not.
"""

from __future__ import annotations

from commtrace.diagnosis import CannotLook
from commtrace.rules._all import RULES, rule_named
from commtrace.rules._ask import diagnose, explanation, verdict
from commtrace.rules._rule import Rule
from commtrace.rules._thresholds import Thresholds, check, configured, thresholds

__all__ = [
    "RULES",
    "CannotLook",
    "Rule",
    "Thresholds",
    "check",
    "configured",
    "diagnose",
    "explanation",
    "rule_named",
    "thresholds",
    "verdict",
]
