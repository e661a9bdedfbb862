"""Pictures show the numbers of the tables, in the Axes they are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from commtrace.metrics.run.step_waits import STEP_WAITS
from commtrace.metrics.run.timeline_events import TIMELINE_EVENTS
from commtrace.plots import heat_plots
from commtrace.plots.bandwidth_plot import bandwidth
from commtrace.plots.breakdown_plot import breakdown
from commtrace.plots.image import SUFFIXES, image
from commtrace.plots.of_run import NAMES
from commtrace.plots.timeline_plot import timeline
from commtrace.rules import RULES
from commtrace.run import Run, load
from commtrace.synthetic import Tiny

MS = 1_000_000
START_NS = 1_700_000_000 * 1_000_000_000


@pytest.fixture(autouse=True)
def _no_window() -> Iterator[None]:
    from matplotlib import pyplot as plt

    before = mpl.get_backend()
    plt.switch_backend("agg")
    yield
    plt.close("all")
    plt.switch_backend(before)


@pytest.fixture
def ax() -> Axes:
    return Figure().add_subplot()


def devices(**times_ms: float) -> pd.DataFrame:
    return pd.DataFrame(
        [{"rank": 0, "device": "cuda:0", **{f"{k}_ns": int(v * MS) for k, v in times_ms.items()}}]
    )


def events(*rows: dict[str, Any]) -> pd.DataFrame:
    ordinary = {"rank": 0, "device": "cuda:0", "stream": 7, "wait_ns": 0, "operation": -1}
    every = [{**ordinary, "name": row["kind"], **row} for row in rows]
    return TIMELINE_EVENTS.of_dicts(every).frame()


def at(start_ms: float, ms: float, **more: Any) -> dict[str, Any]:
    return {"start_ns": START_NS + int(start_ms * MS), "duration_ns": int(ms * MS), **more}


def drawn(ax: Axes) -> dict[str, list[tuple[float, float, float]]]:
    """Per name in the legend: (lane, start, end) of each box, in ms."""
    legend = ax.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    return {
        name: [
            (round(float(np.mean(v[:4, 1]))), round(v[:, 0].min(), 3), round(v[:, 0].max(), 3))
            for v in (path.vertices for path in boxes.get_paths())
        ]
        for name, boxes in zip(names, ax.collections, strict=True)
    }


def measured(**columns: list[Any]) -> pd.DataFrame:
    count = len(columns["busbw_gb_s"])
    defaults = {"op": "all_reduce", "dtype": "float32", "group": "0", "bound": "exact"}
    table = pd.DataFrame({k: [v] * count for k, v in defaults.items()} | columns)
    return table.astype({"size_bytes": "Int64", "busbw_gb_s": "float64"})


def test_the_parts_of_a_bar_are_disjoint_and_fill_the_span(ax: Axes) -> None:
    # 10 ms: compute 0-5, communication 3-7, copies 6-8 (1 ms of it hidden), idle 8-10.
    table = devices(
        span=10,
        compute=5,
        communication=4,
        copy=2,
        overlapped_communication=2,
        exposed_communication=2,
        idle=2,
    )
    assert breakdown(table, ax=ax) is ax
    parts = {str(bars.get_label()): bars[0].get_width() for bars in ax.containers}  # type: ignore[union-attr,index]
    assert parts == {
        "compute": 3,
        "compute and communication": 2,
        "exposed communication": 2,
        "copy": 1,
        "idle": 2,
    }
    assert [t.get_text() for t in ax.texts] == ["30 %", "20 %", "20 %", "10 %", "20 %"]
    assert ax.get_xlabel() == "time [ms]"


def test_a_bar_of_communication_where_nothing_else_is_known(ax: Axes) -> None:
    told = devices(
        span=10, compute=5, overlapped_communication=2, exposed_communication=2, idle=2
    ).assign(communication_ns=4 * MS)
    host = pd.DataFrame([{"rank": 0, "device": "cpu", "communication_ns": 3 * MS}])
    table = pd.concat([told, host], ignore_index=True).convert_dtypes()
    breakdown(table, ax=ax)
    lengths = [[bar.get_width() for bar in bars] for bars in ax.containers]  # type: ignore[union-attr]
    assert lengths == [[3, 0], [2, 0], [2, 0], [1, 0], [2, 0], [0, 3]]


def test_a_lane_for_each_stream_of_each_rank(ax: Axes) -> None:
    shown = events(
        at(1, 2, kind="copy", stream=9),
        at(0, 4, rank=1, kind="compute"),
        at(2, 3, rank=1, kind="communication", stream=20, name="all_reduce", wait_ns=MS),
        at(6, 2, rank=1, kind="communication", stream=20, name=None),
    )
    timeline(shown, ax=ax)
    assert [t.get_text() for t in ax.get_yticklabels()] == [
        "rank 0  cuda:0  stream 9",
        "rank 1  cuda:0  stream 7",
        "rank 1  cuda:0  stream 20",
    ]
    assert drawn(ax) == {
        "compute": [(1, 0, 4)],
        "copy": [(0, 1, 3)],
        "all_reduce": [(2, 3, 5)],
        "waiting": [(2, 2, 3)],
        "communication": [(2, 6, 8)],
    }
    assert ax.get_xlim() == (0, 8)
    assert (
        ax.get_xlabel() == "time from the start [ms]; lighter where something ran for a part of it"
    )


def test_on_a_cpu_the_lanes_are_threads(ax: Axes) -> None:
    timeline(events(at(0, 1, device="cpu", stream=5, kind="compute")), ax=ax)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["rank 0  cpu  thread 5"]


def test_a_window_cuts_events_at_its_edges(ax: Axes) -> None:
    window = {"start_ns": START_NS + 3 * MS, "end_ns": START_NS + 7 * MS}
    timeline(events(at(0, 4, kind="compute"), at(8, 1, kind="compute")), **window, ax=ax)
    assert drawn(ax) == {"compute": [(0, 0, 1)]}
    assert ax.get_xlim() == (0, 4)


def test_many_events_become_no_more_boxes_than_pixels(ax: Axes) -> None:
    count = 20_000
    one = events(at(0, 0.00001, kind="compute"))
    many = one.loc[one.index.repeat(count)].assign(
        start_ns=START_NS + np.arange(count) * 1000, duration_ns=10
    )
    timeline(many, ax=ax)
    assert len(drawn(ax)["compute"]) <= ax.get_window_extent().width


def test_what_is_shorter_than_a_pixel_does_not_hide_what_takes_the_time(ax: Axes) -> None:
    timeline(events(at(0, 1000, kind="compute"), at(500, 0.001, kind="copy")), ax=ax)
    compute, copied = ax.collections
    assert compute.get_zorder() > copied.get_zorder()


def test_a_finding_is_highlighted() -> None:
    run = Run(RULES["straggler"].bad(), "bad")
    finding = run.diagnose(select=["straggler"]).findings[0]
    axes = [Figure().add_subplot() for _ in range(3)]
    run.plot.timeline(finding, ax=axes[0])
    assert axes[0].patches, "its time is shaded"
    run.plot.breakdown(finding, ax=axes[1])
    weights = [label.get_fontweight() for label in axes[1].get_yticklabels()]
    assert weights == ["normal", "bold"]
    run.plot.caused_waits(finding, ax=axes[2])
    assert [box.get_xy() for box in axes[2].patches] == [(-0.5, 0.5)]  # type: ignore[attr-defined]


def test_few_sizes_are_joined_by_no_line(ax: Axes) -> None:
    for sizes in (2, 3):
        bandwidth(
            measured(size_bytes=[10**n for n in range(sizes)], busbw_gb_s=[1.0] * sizes), ax=ax
        )
    assert [line.get_linestyle() for line in ax.lines] == ["None", "-"]


def test_waits_have_a_cell_for_each_rank_and_step(ax: Axes) -> None:
    rows = [
        {"rank": rank, "step": step, "wait_ns": MS * rank, "caused_wait_ns": 0}
        for rank in (0, 1)
        for step in (4, 5, 6)
    ]
    heat_plots.wait_map(STEP_WAITS.of_dicts(rows).frame(), "wait_ns", ax=ax)
    assert ax.images[0].get_array().tolist() == [[0, 0, 0], [1, 1, 1]]  # type: ignore[union-attr]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["4", "5", "6"]


@pytest.mark.parametrize("name", NAMES)
def test_every_picture_has_units_or_says_why_it_is_empty(recorded: Path, name: str) -> None:
    full, empty = Figure().add_subplot(), Figure().add_subplot()
    run = load(recorded / "straggler" / "gloo-4", workers=1)
    assert getattr(run.plot, name)(ax=full) is full
    assert full.get_xlabel() or full.texts[-1].get_text().startswith("nothing to show: ")
    getattr(Run(Tiny(1).trace(), "empty").plot, name)(ax=empty)
    assert empty.texts[-1].get_text().startswith("nothing to show: ")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_picture_is_a_file(suffix: str) -> None:
    begins = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    written = image(Run(RULES["straggler"].bad(), "bad").plot, "breakdown", suffix)
    assert written.startswith(begins[suffix])


def test_bandwidth_has_a_line_per_operation_type_and_group(ax: Axes) -> None:
    table = measured(
        op=["all_reduce", "all_reduce", "broadcast", "barrier"],
        group=["0", "0", "$tensor$", "0"],
        size_bytes=[2_000_000, 1000, 1000, None],
        busbw_gb_s=[20.0, 1.0, 0.5, None],
    )
    bandwidth(table, ax=ax)
    lines = {line.get_label(): line.get_xydata().tolist() for line in ax.lines}  # type: ignore[union-attr]
    assert lines["all_reduce  float32  group 0"] == [[1000, 1], [2_000_000, 20]]
    assert lines["broadcast  float32  group $tensor$"] == [[1000, 0.5]]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_ylabel() == "bus bandwidth [GB/s]"
    ax.figure.draw_without_rendering()  # type: ignore[union-attr] # a $ in a name is no formula


def test_groups_too_many_for_markers_are_shown_by_dimension(ax: Axes) -> None:
    count = 40
    table = measured(
        group=[f"g{i}" for i in range(count)],
        dimension=["tp"] * 8 + ["dp"] * 32,
        size_bytes=[1000 * (i + 1) for i in range(count)],
        busbw_gb_s=[1.0] * count,
    )
    bandwidth(table, ax=ax)
    legend = ax.get_legend()
    assert legend is not None
    named = [text.get_text() for text in legend.get_texts()]
    assert named == ["all_reduce  float32  dimension dp", "all_reduce  float32  dimension tp"]
    assert {line.get_linestyle() for line in ax.lines} == {"None"}


@pytest.mark.parametrize(("ranks", "distance"), [(8, 1), (40, 1), (64, 2), (256, 8), (1000, 32)])
def test_of_many_ranks_every_nth_is_named(ranks: int, distance: int) -> None:
    rows = [{"rank": r, "step": 1, "wait_ns": MS, "caused_wait_ns": 0} for r in range(ranks)]
    ax = heat_plots.wait_map(STEP_WAITS.of_dicts(rows).frame(), "wait_ns")
    named = [int(label.get_text()) for label in ax.get_yticklabels()]
    assert named == list(range(0, ranks, distance))
    assert ax.figure.get_figheight() < 15
    plt.close(ax.figure)  # type: ignore[arg-type]


@pytest.mark.parametrize("most", [1.1, 4, 30, 900, 1e6])
def test_both_axes_are_labelled_whatever_they_span(ax: Axes, most: float) -> None:
    table = measured(size_bytes=[1000, int(1000 * most)], busbw_gb_s=[0.3, 0.3 * most])
    bandwidth(table, ax=ax)
    for axis in (ax.xaxis, ax.yaxis):
        low, high = axis.get_view_interval()
        labelled = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
        assert 3 <= len(labelled) <= 10


@pytest.mark.parametrize("width", [4, 9, 20])
def test_a_legend_is_as_wide_as_the_picture(width: float) -> None:
    ax = Figure(figsize=(width, 3)).add_subplot()
    host = pd.DataFrame([{"rank": 0, "device": "cpu", "communication_ns": 3 * MS}])
    told = devices(span=10, compute=5, overlapped_communication=2, exposed_communication=2, idle=2)
    breakdown(pd.concat([told, host], ignore_index=True).convert_dtypes(), ax=ax)
    legend = ax.get_legend()
    assert legend is not None
    assert len(legend.get_texts()) == 6
    assert legend.get_window_extent().width <= ax.get_window_extent().width


@pytest.mark.parametrize("bound", ["exact", "lower"])
def test_a_lower_bound_is_marked(ax: Axes, bound: str) -> None:
    bandwidth(measured(size_bytes=[1000], busbw_gb_s=[1.0], bound=[bound]), ax=ax)
    legend = ax.get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert ("lower bound" in labels) == (bound == "lower")


def test_pyplot_is_left_alone_when_axes_are_given(ax: Axes) -> None:
    from matplotlib import pyplot as plt

    timeline(events(at(0, 1, kind="compute")), ax=ax)
    bandwidth(measured(size_bytes=[1], busbw_gb_s=[1.0]), ax=ax)
    assert plt.get_fignums() == []
    bandwidth(measured(size_bytes=[1], busbw_gb_s=[1.0]))
    assert len(plt.get_fignums()) == 1
