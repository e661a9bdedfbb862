"""A time, and so a finding, lies in the innermost label that holds most of it."""

from __future__ import annotations

from collections.abc import Callable

from commtrace.intervals import union
from commtrace.measures import Measures
from commtrace.metrics.run.places import place
from commtrace.rules import diagnose
from commtrace.rules.false_overlap import FalseOverlap
from commtrace.synthetic import BASE_NS, Tiny


def test_a_time_lies_in_the_innermost_label_that_holds_most_of_it(
    make_trace: Callable[..., Measures],
) -> None:
    labels = [("train", 0, 1_000), ("forward", 100, 400), ("layer", 100, 200)]
    steps = [
        {"rank": rank, "label": name, "start_ns": start, "duration_ns": end - start, "thread": 1}
        for rank, its in ((0, labels), (1, [("other", 0, 1_000)]))
        for name, start, end in its
    ]
    run = make_trace(steps=steps, ranks=[{"rank": 0}, {"rank": 1}])

    def lies(*when: tuple[int, int], ranks: tuple[int, ...] = (0,)) -> str | None:
        starts, ends = zip(*when, strict=True)
        return place(run, union(starts, ends), ranks)

    assert lies((110, 190)) == "layer"
    assert lies((110, 190), (300, 380)) == "forward"
    assert lies((110, 190), (600, 680)) == "train"
    assert lies((0, 3_000)) is None
    assert lies((110, 190), ranks=()) is None  # in train's layer, and in other
    assert lies((110, 190), ranks=(1,)) == "other"


def test_findings_name_the_label_that_they_lie_in() -> None:
    bad = FalseOverlap.bad()
    (found,) = diagnose(bad, select=["false-overlap"]).findings
    assert (found.place, found.when) == ("behind the all_reduce", None)
    tiny = Tiny()
    for step in range(12):
        tiny.step(0, step, 1_000 * step, 1_000)
        tiny.step(0, step, 1_000 * step + 50, 900, "early")
        at = 1_000 * step + 100
        tiny.collective(0, "all_reduce", at, 400, size=1 << 24, asynchronous=1)
        tiny.kernel(0, at + 405, 380, launch_ns=BASE_NS + round(1e3 * (at + 10)))
    (found,) = diagnose(tiny.trace(), select=["false-overlap"]).findings
    assert found.place == "early"
