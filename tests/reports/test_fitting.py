"""Tables lose columns deliberately, names are cut in their middle, numbers never."""

from __future__ import annotations

import pytest

from commtrace.reports.content.tables import Section
from commtrace.reports.fitting import fitted
from commtrace.reports.wrapping import wrapped

TABLE = Section(
    "Table",
    (("name", "<"), ("group", "<"), ("count", ">"), ("time\nspent", ">"), ("over-\nlapped", ">")),
    [
        ["a_collective_of_a_long_name", "–", "12", "1.25 ms", "0"],
        ["  within\n  (ran as all_reduce)", "–", "3", "12.5 ms", "0"],
    ],
    ("A footer.",),
    ("count", "over-\nlapped", "no such column", "group"),
)


@pytest.mark.parametrize(
    ("width", "left", "said"),
    [
        (100, ["name", "group", "count", "time\nspent", "over-\nlapped"], None),
        (48, ["name", "group", "count", "time\nspent", "over-\nlapped"], None),  # a name is cut
        (41, ["name", "group", "count", "time\nspent"], "overlapped"),  # all 0: says nothing
        (30, ["name", "count", "time\nspent"], "overlapped, group"),
        (24, ["name", "time\nspent"], "overlapped, group, count"),
    ],
)
def test_columns_go_in_order_those_that_say_nothing_first(
    width: int, left: list[str], said: str | None
) -> None:
    fit = fitted(TABLE, width)
    assert [name for name, _ in fit.section.columns] == left
    assert sum(fit.widths) + fit.gap * (len(left) - 1) <= width
    noted = (f"Not shown at this width: {said}.",) if said else ()
    assert fit.section.footer == ("A footer.", *noted)


def test_names_are_cut_in_their_middle_and_keep_what_they_are_indented_by() -> None:
    cells = [row[0] for row in fitted(TABLE, 24).section.cells]
    assert cells == ["a_collec…ng_name", "  within\n  (ran as…educe)"]
    assert fitted(TABLE, 100).section.cells == TABLE.cells


def test_a_gap_narrows_before_anything_else() -> None:
    wide = Section("T", (("n", ">"),) * 2, [["1" * 50, "2" * 49]])
    assert fitted(wide, 101).gap == 2
    assert fitted(wide, 100).gap == 1


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("it takes 12.5 ms", 14, ["it takes", "12.5 ms"]),
        ("a share of 27 % is it", 14, ["a share of", "27 % is it"]),
        ("from cuda:0 → cuda:1, once", 17, ["from", "cuda:0 → cuda:1,", "once"]),
        ("it is of rank 1", 11, ["it is of", "rank 1"]),
        ("exposed-communication", 10, ["exposed-co", "mmunicatio", "n"]),
        ("", 10, [""]),
    ],
)
def test_lines_break_where_they_may(text: str, width: int, lines: list[str]) -> None:
    assert wrapped(text, width).splitlines() == [line for line in lines if line]
