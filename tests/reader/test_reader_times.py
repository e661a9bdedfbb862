from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from commtrace.arrays import NULL
from commtrace.reader.json.times import InexactError, from_numbers, nanoseconds


def plain(text: str) -> int:
    return int((Decimal(text) * 1000).to_integral_value())


def test_every_age_of_timestamp() -> None:
    texts = [b"1669783687464181", b"1711964646123456.750", b"4458676522690.655", b"0.300"]
    assert nanoseconds(texts).tolist() == [
        1669783687464181000,
        1711964646123456750,
        4458676522690655,
        300,
    ]


def test_what_is_no_number_is_null_and_spoils_no_other() -> None:
    texts = [b"null", b'"soon"', b"1.5", b"true", b"[1]", b"1e30", b"9223372036854775807", b"2"]
    assert nanoseconds(texts).tolist() == [NULL] * 2 + [1500] + [NULL] * 4 + [2000]
    assert nanoseconds([]).tolist() == []


def test_strings_hold_numbers() -> None:
    """As Ascend writes them; one that holds several is none, and shifts no other."""
    texts = [b'"1711964646123456.789"', b'"1,2"', b'""', b"2"]
    assert nanoseconds(texts).tolist() == [1711964646123456789, NULL, NULL, 2000]


whole = st.integers(-(2**60) // 1000, 2**60 // 1000).map(str)
decimals = st.builds("{}.{:03}".format, st.integers(0, 2**51), st.integers(0, 999))
more_decimals = st.builds("{}.{}".format, st.integers(0, 2**51), st.integers(0, 10**9))
reprs = st.floats(0, 2**51).map(repr)


@given(st.lists(st.one_of(whole, decimals, more_decimals, reprs)))
@example(["1.3625"])  # a tie that no float tells
@example(["4000000000000.123456789"])
def test_agrees_with_decimal_arithmetic(texts: list[str]) -> None:
    assert nanoseconds([t.encode() for t in texts]).tolist() == [plain(t) for t in texts]


@given(st.lists(st.builds("{}.{:03}".format, st.integers(0, 2**43), st.integers(0, 999))))
def test_agrees_with_decimal_arithmetic_up_to_a_hundred_days(texts: list[str]) -> None:
    assert nanoseconds([t.encode() for t in texts]).tolist() == [plain(t) for t in texts]


exact = st.builds("{}.{:03}".format, st.integers(-(2**43) + 1, 2**43 - 1), st.integers(0, 999))


@given(st.lists(st.one_of(whole, exact)))
def test_numbers_of_three_decimals_need_no_text(texts: list[str]) -> None:
    small = all(abs(Decimal(text)) < 2**43 for text in texts)
    if small or not any("." in text for text in texts):
        assert from_numbers([json.loads(text) for text in texts]).tolist() == [*map(plain, texts)]


@given(st.lists(st.one_of(whole, exact, more_decimals, reprs)))
@example(["1.3625"])
@example(["4000000000000.123456789"])
@example(["1711964646123456.789"])
def test_numbers_are_exact_or_say_that_they_are_not(texts: list[str]) -> None:
    try:
        found = from_numbers([json.loads(text) for text in texts]).tolist()
    except InexactError:
        return
    for ns, text in zip(found, texts, strict=True):
        assert ns == plain(text) or abs(ns - Decimal(text) * 1000) < 1


def test_numbers_that_are_missing_or_strings() -> None:
    assert from_numbers([None, 1.5, None]).tolist() == [NULL, 1500, NULL]
    for odd in ("1.5", 2**70, 1e300, 2.0**44):
        with pytest.raises(InexactError):
            from_numbers([1.5, odd])
