"""Rows of tables as columns."""

from __future__ import annotations

import numpy as np

from commtrace.table import Coded, Column, Table

PEOPLE = Table(
    "people",
    "one of them",
    (
        Column("name", "category", "Of whom."),
        Column("age", "Int64", "Null if unknown.", "years"),
        Column("height", "float64", "Null if unknown.", "m"),
    ),
)
THREE = [
    {"name": "Ada", "age": 36, "height": None},
    {"name": None, "age": None, "height": 1.5},
    {"name": "Bob", "age": 5, "height": 1.1},
]


def test_dicts_come_back() -> None:
    rows = PEOPLE.of_dicts(THREE)
    assert rows.dicts() == THREE
    assert rows.take(np.array([2, 0])).dicts() == [THREE[2], THREE[0]]


def test_only_some_columns_are_in_the_frame() -> None:
    few = PEOPLE.of_dicts(THREE).only("age", "name")
    assert [*few.frame()] == ["age", "name"]
    assert few.take(slice(1)).dicts() == [{"age": 36, "name": "Ada"}]


def test_one_string_has_one_code() -> None:
    twice = Coded(np.array([0, 1, 2, -1], np.int32), ("a", "b", "a"))
    rows = Table("names", "one name", (Column("name", "category", "It."),)).rows({"name": twice})
    assert rows.coded("name").names == ("a", "b")
    assert rows.coded("name").decoded() == ["a", "b", "a", None]
    assert rows.frame()["name"].tolist()[:3] == ["a", "b", "a"]
