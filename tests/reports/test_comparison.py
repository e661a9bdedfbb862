"""Every format of a comparison: as wide as asked, as its schema has it, nothing unescaped."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources

import jsonschema
import pytest

from commtrace.comparing.compared import Compared, compared
from commtrace.comparing.gate import Gate
from commtrace.comparing.recorded import Recorded
from commtrace.comparison import Comparison
from commtrace.diagnosis import Diagnosis, Note
from commtrace.metrics.run.summary import summary
from commtrace.reports import Look
from commtrace.reports.comparison import FORMATS, github
from commtrace.reports.comparison.json import schema
from commtrace.synthetic import BASE_NS, Tiny

HOSTILE = "<script>x</script>|`%0A::error::\n[a](b)"


def recorded(work_us: float, name: str, steps: int = 6) -> Recorded:
    """Two ranks, of which the second computes so long before an all_reduce of 1 ms."""
    tiny = Tiny(2, backend="gloo")
    at = 0.0
    for step in range(steps):
        mine = (5_000, work_us + 50 * step)
        end = at + max(mine) + 1_000
        for rank, work in enumerate(mine):
            tiny.op(rank, at, work)
            tiny.collective(
                rank,
                "all_reduce",
                at + work,
                end - at - work,
                size=1 << 20,
                asynchronous=0,
                thread=1,
                launch_ns=BASE_NS + round((at + work) * 1_000),
            )
            tiny.gap(rank, at + work, end - at - work)
            tiny.step(rank, step, at, end - at)
        at = end
    run = tiny.trace()
    return Recorded(summary(run, name), run, Diagnosis())


@pytest.fixture(scope="module")
def slower() -> Compared:
    its = compared([recorded(6_000, HOSTILE)], [recorded(14_000, "after")])
    return replace(its, notes=(Note("hostile", HOSTILE),))


@pytest.fixture(scope="module")
def nothing() -> Compared:
    return compared([recorded(6_000, "none", steps=0)], [recorded(6_000, "none", steps=0)])


@pytest.mark.parametrize("name", FORMATS.names)
def test_every_format_has_something_to_say(name: str, slower: Compared, nothing: Compared) -> None:
    render = FORMATS.named(name).render
    assert "slower" in render(slower, Gate(3))
    assert "inconclusive" in render(nothing)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_text_is_as_wide_as_asked(slower: Compared, width: int) -> None:
    text = FORMATS.named("text").render(slower, Gate(3), Look(width=width))
    assert max(map(len, text.splitlines())) <= width
    assert "rank 1: compute" in text
    assert "Gate: failed: slower by at least" in text


def test_the_parts_and_the_rest_are_the_step_s_change(slower: Compared) -> None:
    document = json.loads(FORMATS.named("json").render(slower, Gate(3)))
    parts = sum(row["change_ns"] for row in document["changes"]) + document["rest_ns"]
    assert parts == document["step"]["candidate_ns"] - document["step"]["base_ns"] == 8_000_000
    assert document["gate_pct"] == 3
    assert document["gate_failed"]


def test_the_json_is_as_its_schema_has_it(slower: Compared, nothing: Compared) -> None:
    validator = jsonschema.Draft202012Validator(schema())
    for its in (slower, nothing):
        validator.validate(json.loads(FORMATS.named("json").render(its)))


def test_the_schema_in_the_package_is_this_one() -> None:
    text = resources.files("commtrace.reports").joinpath("compare.schema.json").read_text("utf-8")
    assert json.loads(text) == schema()


def test_an_annotation_is_one_line_and_as_grave_as_the_gate_says(slower: Compared) -> None:
    assert github.annotation(slower, Gate(3)).startswith("::error title=commtrace compare::slower")
    assert github.annotation(slower, Gate(900)).startswith("::warning ")
    assert github.annotation(slower).count("\n") == 1
    assert "%25" in github.annotation(slower)


def test_junit_fails_or_skips_as_the_gate_says(slower: Compared, nothing: Compared) -> None:
    render = FORMATS.named("junit").render
    failed = ElementTree.fromstring(render(slower, Gate(3)))
    assert failed.attrib["failures"] == "1"
    assert failed.find("testcase/failure") is not None
    assert ElementTree.fromstring(render(slower)).attrib["failures"] == "0"
    assert ElementTree.fromstring(render(nothing)).find("testcase/skipped") is not None
    strict = ElementTree.fromstring(render(nothing, Gate(strict=True)))
    assert strict.find("testcase/failure") is not None


@pytest.mark.parametrize("name", ["html", "markdown", "github"])
def test_names_from_traces_are_no_markup(name: str, slower: Compared) -> None:
    text = FORMATS.named(name).render(slower, Gate(3))
    assert "<script" not in text
    assert "\n::error::" not in text


def test_the_page_is_whole_and_loads_nothing(slower: Compared) -> None:
    class Checks(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            assert not {"src", "href", "style"} & {name for name, _ in attrs}
            if tag != "meta":
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    checks = Checks()
    page = FORMATS.named("html").render(slower)
    checks.feed(page)
    assert not checks.open
    for text in ("From base to candidate", "Every step's critical path", "rank 1: compute"):
        assert text in page.replace("&#x27;", "'")


def test_a_typical_step_of_both_sides_is_drawn_on_one_scale(slower: Compared) -> None:
    page = FORMATS.named("html").render(slower)
    assert "base, step 2: 7.10 ms" in page
    assert "candidate, step 2: 15.1 ms" in page
    pictures = [part.partition("</svg>")[0] for part in page.split('<svg viewBox="110 0 1090 ')[1:]]
    assert len(pictures) == 2
    compute = [wide(picture, "compute", rank=1) for picture in pictures]
    assert compute == [pytest.approx(400, abs=10), pytest.approx(930, abs=10)]
    waited = [wide(picture, "wait", rank=0) for picture in pictures]
    assert waited == [pytest.approx(75, abs=10), pytest.approx(600, abs=10)]


def wide(picture: str, kind: str, rank: int) -> int:
    """The width of a rank's box of a kind, of a thousand, without edges that a pixel cuts."""
    paths = re.findall(f'<path class="{kind}" d="M[0-9]+ ([0-9]+)h([0-9]+)v', picture)
    return max(int(width) for y, width in paths if (int(y) - 24) // 26 == rank)


def test_many_steps_do_not_make_the_page_too_large(slower: Compared) -> None:
    page = FORMATS.named("html").render(replace(slower, paths=slower.paths * 1_000))
    assert len(page) < 1_000_000
    assert "11,800 more steps: not drawn" in page


def test_a_notebook_shows_it_and_draws_the_waterfall(slower: Compared, nothing: Compared) -> None:
    its = Comparison(slower)
    assert "rank 1: compute" in its._repr_html_()
    assert repr(its).startswith("<Comparison: slower: a step takes")
    ax = its.waterfall()
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert "all else" not in names, "a nanosecond of rounding is none"
    assert names[0] == "base"
    assert names[-1] == "candidate"
    assert "rank 1: compute" in names
    assert Comparison(nothing).waterfall().texts
