"""What a user calls a threshold: today's name, and until 1.0 the one that it had."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import asdict

from commtrace.errors import UsageError
from commtrace.rules import RULES, diagnose
from commtrace.rules._thresholds import configured
from commtrace.synthetic import Tiny


@pytest.mark.parametrize(
    ("rule", "old", "new"),
    [
        ("straggler", {"min_share": "0.9"}, {"min_step_share": 0.9}),
        ("cold-start", {"min_share_pct": 90}, {"min_step_share": 0.9}),
        ("decomposed-all-reduce", {"large_share_pct": 90.0}, {"large_step_share": 0.9}),
        ("unfit-trace", {"held_up_share": 0.9}, {"min_step_share": 0.9}),
    ],
)
def test_old_names_of_thresholds_are_taken_with_a_warning(
    rule: str, old: dict[str, Any], new: dict[str, float]
) -> None:
    (name,) = new
    with pytest.warns(FutureWarning, match=rf"set {name} = 0\.9; the old name goes with 1\.0"):
        renamed = configured(rule, old)
    assert getattr(renamed, name) == pytest.approx(0.9)
    assert configured(rule, new) == RULES[rule](**new)  # without a warning
    with pytest.warns(FutureWarning):
        assert getattr(configured(rule, {**old, name: 0.5}), name) == 0.5  # today's name wins


@pytest.mark.parametrize(
    ("rule", "name"), [("straggler", "min_operations"), ("jitter", "min_ratio")]
)
def test_names_without_a_meaning_are_taken_with_a_warning(rule: str, name: str) -> None:
    told = rf"{rule}\.{name} has no meaning any more, and is ignored"
    with pytest.warns(FutureWarning, match=told) as warned:
        assert configured(rule, {name: "13", "min_step_share": "0.9"}).min_step_share == 0.9
    assert len(warned) == 1
    with pytest.raises(UsageError, match="it has: min_step_share"):
        configured(rule, {"max_operations": 13})


@pytest.mark.parametrize("rule", ["at-the-roofline", "impossible-number"])
def test_a_share_of_something_else_keeps_its_name(rule: str) -> None:
    assert asdict(configured(rule, {"min_share": 0.5}))["min_share"] == 0.5


def test_an_old_name_that_the_rule_never_had_is_unknown() -> None:
    with pytest.raises(UsageError, match="it has: listed"):
        configured("desync", {"min_share": 0.5})


def test_a_threshold_of_an_unknown_rule_is_refused_whatever_is_selected() -> None:
    with pytest.raises(UsageError, match="no rule is called 'stragler'"):
        diagnose(Tiny(2).trace(), select=["jitter"], thresholds={"stragler": {"min_step_share": 1}})
