"""Which findings of two sides are the same fault."""

from __future__ import annotations

from commtrace.comparing.findings import findings
from commtrace.diagnosis import Diagnosis, Finding


def found(*places: str) -> Diagnosis:
    """Findings of one rule about no rank, each in a place, the first the costliest."""
    return Diagnosis(
        tuple(
            Finding(
                rule="decomposed-all-reduce",
                summary=place,
                ranks=(),
                streams=(),
                start_ns=0,
                end_ns=1,
                cost_ns=10 - number,
                evidence=(),
                ruled_out=(),
                advice="",
                confidence="medium",
                place=place,
            )
            for number, place in enumerate(places)
        )
    )


def said(base: list[Diagnosis], candidate: list[Diagnosis]) -> list[list[str | None]]:
    its = findings(base, candidate)
    return [[one.place for one in some] for some in (its.new, its.resolved, its.remaining)]


def test_of_several_of_a_rule_those_in_the_same_place_remain() -> None:
    both, one = found("a", "b"), found("b")
    assert said([both], [one]) == [[], ["a"], ["b"]]
    assert said([one], [both]) == [["a"], [], ["b"]]
    assert said([both], [both]) == [[], [], ["a", "b"]]


def test_one_remains_wherever_it_is_now() -> None:
    assert said([found("a")], [found("b")]) == [[], [], ["b"]]
    assert said([found("a", "b")], [found("c")]) == [[], ["b"], ["c"]]


def test_of_several_recordings_as_many_count_as_half_of_them_have() -> None:
    side = [found("a", "b"), found("a", "b"), found("a"), found()]
    assert said([found()], side) == [["a", "b"], [], []]
    assert said([found()], side[1:]) == [["a"], [], []]


def test_what_one_of_three_has_does_not_stand_for_what_all_have() -> None:
    assert said([found()] * 3, [found("x", "a"), found("a"), found("a")]) == [["a"], [], []]
    assert said([found("a")] * 3, [found("x", "a"), found("a"), found("a")]) == [[], [], ["a"]]
    assert said([found()], [found("a", "a")]) == [["a", "a"], [], []]
