"""The page: one file that asks nobody, in which no name is markup, and never more than 4 MB."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from commtrace.analysis import Analysis
from commtrace.measures import Measures
from commtrace.metrics.run.timeline_events import timeline_events
from commtrace.reports.formats import html
from commtrace.reports.web import document
from commtrace.reports.web.packed import packed
from commtrace.reports.web.thinned import events_of, thinned
from commtrace.run import Run, load
from commtrace.synthetic import Tiny

Make = Callable[..., Measures]

SECTIONS = [
    "Verdict",
    "Where the time goes",
    "Timeline",
    "Bandwidth against size",
    "Who sends to whom",
    "Who waits for whom",
    "Tables",
    "The trace's quality",
]


class Tags(HTMLParser):
    """What a browser makes of a page: its tags with their attributes, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def said(self) -> str:
        return " ".join("".join(self.texts).split())


@pytest.fixture(scope="module")
def straggler(recorded: Path) -> str:
    return html.render(load(recorded / "straggler" / "gloo-4", workers=1).analysis())


def test_all_sections_in_their_order(recorded: Path) -> None:
    analysis = load(recorded / "send_recv" / "gloo-4", workers=1).analysis()
    assert re.findall("<h2>(.*?)</h2>", html.render(analysis).replace("&#x27;", "'")) == SECTIONS


def test_it_says_what_the_other_reports_say(straggler: str) -> None:
    said = Tags(straggler).said
    for text in (
        "rank 1 delays every step",
        "potential saving: up to",
        "operators more than the others",
        "inherited lateness",
        "median step without it",
        "commtrace open ",
        "Caused: how long the others waited for this rank",
    ):
        assert text in said, text


def test_of_a_run_without_steps_it_speaks_of_its_tenths() -> None:
    run = Tiny(2)
    for turn in range(20):
        for rank in range(2):
            run.kernel(rank, 2_000 * turn, 500 + 900 * rank)
            run.collective(rank, "all_reduce", 2_000 * turn + 500 + 900 * rank, 1_100 - 900 * rank)
    said = Tags(html.render(Run(run.trace(), "stepless").analysis())).said
    assert "median tenth of the run without it" in said
    assert "The critical path of a tenth of the run" in said
    assert "median step" not in said


def test_it_asks_nobody_for_anything(straggler: str) -> None:
    for name, attributes in Tags(straggler).tags:
        assert name not in ("img", "iframe", "link", "object", "embed", "base", "form")
        assert "src" not in attributes
        assert "style" not in attributes, "the policy forbids it"
        assert (attributes.get("href") or "#").startswith("#")
        assert not [key for key in attributes if key.startswith("on")]
    assert set(re.findall(r"https?://[^\s\"']*", straggler)) == {"http://www.w3.org/2000/svg"}


def test_only_its_own_script_and_style_may_run(straggler: str) -> None:
    policy = next(a["content"] for _, a in Tags(straggler).tags if "http-equiv" in a) or ""
    assert policy.startswith("default-src 'none';")
    for name in ("style", "script"):
        text = re.search(f"<{name}>(.*?)</{name}>", straggler, re.DOTALL)
        assert text is not None
        digest = base64.b64encode(hashlib.sha256(text[1].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy


def hostile(name: str) -> Analysis:
    run = Tiny(2, hosts=(name,))
    run.groups = {name: (0, 1)}
    for rank in range(2):
        run.step(rank, 1, 0, 400)
        run.step(rank, 1, 10, 300, label=name)
        run.kernel(rank, 0, 100, name=name)
        start = 100 + 50 * rank
        run.collective(rank, "all_reduce", start, 200 - start, size=4, group=name, dtype=name)
        route = {"source": "host", "destination": name, "device": "cuda:0"}
        run.copy(rank, 300, 5, kind="HtoD", size=8, **route)
    return Run(run.trace(), name).analysis()


NAMES = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "</title></style></svg><script>alert(1)</script>",
    '" onmouseover="alert(1)" x="',
    "' onload='alert(1)",
    "<!--",
    "]]>",
    "&lt;b&gt;",
    "$script ${title} \\u003c",
    "\u202edesrever\x1b[2J\u2028",
)


@pytest.fixture(scope="module")
def plain() -> Tags:
    return Tags(html.render(hostile("plain")))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_text(plain: Tags, name: str) -> None:
    page = Tags(html.render(hostile(name)))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    for (_, mine), (_, others) in zip(page.tags, plain.tags, strict=True):
        assert mine.keys() == others.keys()


def test_an_empty_trace_is_no_error(make_trace: Make) -> None:
    said = Tags(html.render(Run(make_trace(), "empty").analysis())).said
    assert "No findings." in said
    assert "Who waits" not in said


def test_numbers_are_packed_as_the_script_reads_them() -> None:
    columns = [np.array([0, 127, 128, 2**40 + 5], np.int64), np.empty(0, np.int64)]
    raw = zlib.decompress(base64.b64decode(packed(columns)))
    assert list(numbers(raw)) == [0, 127, 128, 2**40 + 5]


def numbers(raw: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in raw:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            yield number
            number = shift = 0


def many(kernels: int) -> Measures:
    run = Tiny(2)
    chance = np.random.default_rng(1)
    for rank in range(2):
        for i in range(kernels):
            run.kernel(rank, 10 * i, chance.uniform(1, 9), name=f"kernel {i % 7}")
        run.collective(rank, "all_reduce", 10 * kernels, 20, size=4)
    return run.trace()


def test_thinning_merges_neighbours_and_loses_no_time() -> None:
    events = events_of(timeline_events(many(500)))
    fewer, gap = thinned(events, 100)
    assert gap > 0
    assert fewer.start.size <= 100
    assert fewer.count.sum() == events.count.sum() == 1002
    assert set(fewer.operation) == {-1, 0}, "communication stays whole"
    assert fewer.end.max() == events.end.max()
    same, nothing = thinned(events, 2000)
    assert (same.start.size, nothing) == (1002, 0)


def test_it_is_thinned_until_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = Run(many(3000), "many").analysis(select=["desync"])
    whole = html.render(analysis)
    monkeypatch.setattr(document, "MOST_BYTES", len(whole.encode()) - 1000)
    monkeypatch.setattr(
        document, "_BUDGETS", tuple(document._Budget(4000 // 4**i, 50) for i in range(6))
    )
    page = html.render(analysis)
    assert len(page.encode()) <= document.MOST_BYTES
    assert "Thinned to" in page
    assert "Thinned to" not in whole


def large(kernels: int, steps: int, labels: int) -> Run:
    """Two ranks whose events compress badly, with very many steps and names."""
    run, chance = Tiny(2), np.random.default_rng(1)
    for rank in range(2):
        run.kernel(rank, 0, 1, name="first")
        run.collective(rank, "all_reduce", 10, 20, size=4)
    trace = run.trace()
    count = 2 * kernels
    start = np.sort(chance.integers(0, 10**12, count)) + int(trace.kernels["start_ns"].min())
    which = chance.integers(0, labels, count)
    many = trace.kernels.iloc[np.arange(count) % 2].reset_index(drop=True)
    many = many.assign(
        rank=np.arange(count) % 2,
        start_ns=start,
        duration_ns=chance.integers(1, 10**5, count),
        name=pd.Categorical([f"kernel {number} {number**9}" for number in which]),
    )
    first = run_with_steps(steps)
    return Run(replace(trace, kernels=many, steps=first), "large")


def run_with_steps(count: int) -> pd.DataFrame:
    run = Tiny(2)
    for rank in range(2):
        run.step(rank, 0, 0, 1)
    steps = run.trace().steps
    many = steps.iloc[np.arange(2 * count) // count].reset_index(drop=True)
    number = np.arange(2 * count) % count
    begin = int(steps["start_ns"].min())
    return many.assign(
        step=pd.array(number, "Int64"),
        start_ns=begin + number * (10**12 // count),
        duration_ns=10**12 // count,
    )


def test_a_run_of_which_everything_must_be_thinned_fits_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(document, "MOST_BYTES", 200_000)
    page = html.render(large(kernels=4_000, steps=2_000, labels=1_000).analysis(select=["desync"]))
    assert len(page.encode()) <= document.MOST_BYTES
    said = Tags(page).said
    assert re.search(r"Marked are [\d,]+ of 2,000 steps", said)
    assert "Thinned to" in said
    assert "--format json has all" in said


def test_what_cannot_be_thinned_is_left_out_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    analysis = Run(many(300), "many").analysis(select=["desync"])
    empty = len(html.render(Run(Tiny(1).trace(), "none").analysis(select=["desync"])))
    monkeypatch.setattr(document, "MOST_BYTES", empty + 6_000)
    page = html.render(analysis)
    assert len(page.encode()) <= document.MOST_BYTES
    assert re.findall("<h2>(.*?)</h2>", page)[0] == "Verdict"
    assert page.count("Left out: ")
    assert "No findings" in Tags(page).said


def test_a_long_command_line_is_shown_short_and_whole_at_its_end(recorded: Path) -> None:
    run = load(recorded / "straggler" / "gloo-4", workers=1)
    files = tuple(f"/shared/job/rank{rank}.json.gz" for rank in range(4_000))
    page = html.render(replace(run, paths=files).analysis())
    assert len(page) < 1_000_000
    (shown, *_) = re.findall("<code>(commtrace open .*?)</code>", page)
    assert shown.startswith("commtrace open /shared/job/rank0.json.gz /shared")
    assert shown.endswith("rank3999.json.gz --finding 1")
    assert len(shown) < 1_100


def test_the_timelines_data_are_json(straggler: str) -> None:
    data = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', straggler, re.DOTALL)
    assert data is not None
    read = json.loads(data[1])
    raw = zlib.decompress(base64.b64decode(read["packed"]))
    events = sum(lane[3] for lane in read["lanes"])
    assert len(list(numbers(raw))) == 6 * events + 3 * read["operations"]
