"""Pictures show the numbers of the tables, in the Axes they are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from commtrace import plots
from commtrace.table import Table
from commtrace.trace_tables import COLLECTIVES, COPIES, KERNELS, OPS

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


def rows(table: Table, *events: dict[str, Any]) -> pd.DataFrame:
    zeros: dict[str, Any] = {
        c.name: 0 if c.dtype == "int64" else False if c.dtype == "bool" else None
        for c in table.columns
    }
    return table.from_rows([{**zeros, "device": "cuda:0", **event} for event in events])


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
    assert plots.breakdown(table, ax=ax) is ax
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
    plots.breakdown(table, ax=ax)
    lengths = [[bar.get_width() for bar in bars] for bars in ax.containers]  # type: ignore[union-attr]
    assert lengths == [[3, 0], [2, 0], [2, 0], [1, 0], [2, 0], [0, 3]]


def test_a_lane_for_each_stream_of_each_rank(ax: Axes) -> None:
    kernels = rows(
        KERNELS,
        at(0, 4, rank=1, stream=7, kind="compute"),
        at(2, 3, rank=1, stream=20, kind="communication"),
    )
    copies = rows(COPIES, at(1, 2, rank=0, stream=9, kind="HtoD"))
    collectives = rows(
        COLLECTIVES,
        at(2, 3, rank=1, stream=20, op="all_reduce"),
        at(6, 2, rank=1, stream=20),
    )
    plots.timeline(kernels, copies, collectives, ax=ax)
    assert [t.get_text() for t in ax.get_yticklabels()] == [
        "rank 0  cuda:0  stream 9",
        "rank 1  cuda:0  stream 7",
        "rank 1  cuda:0  stream 20",
    ]
    assert drawn(ax) == {
        "compute": [(1, 0, 4)],
        "copy": [(0, 1, 3)],
        "all_reduce": [(2, 2, 5)],
        "communication": [(2, 6, 8)],
    }
    assert ax.get_xlim() == (0, 8)
    assert ax.get_xlabel() == "time from the start [ms]"


def test_on_a_cpu_the_lanes_are_threads(ax: Axes) -> None:
    ops = rows(OPS, at(0, 1, thread=5, kind="compute"), at(1, 1, thread=5, kind="communication"))
    collectives = rows(COLLECTIVES, at(1, 1, stream=6, op="broadcast", device="cpu"))
    plots.timeline(rows(KERNELS), rows(COPIES), collectives, ops, ax=ax)
    assert [t.get_text() for t in ax.get_yticklabels()] == [
        "rank 0  cpu  thread 5",
        "rank 0  cpu  thread 6",
    ]
    assert drawn(ax) == {"compute": [(0, 0, 1)], "broadcast": [(1, 1, 2)]}


def test_a_window_cuts_events_at_its_edges(ax: Axes) -> None:
    kernels = rows(KERNELS, at(0, 4, kind="compute"), at(8, 1, kind="compute"))
    window = {"start_ns": START_NS + 3 * MS, "end_ns": START_NS + 7 * MS}
    plots.timeline(kernels, rows(COPIES), rows(COLLECTIVES), **window, ax=ax)
    assert drawn(ax) == {"compute": [(0, 0, 1)]}
    assert ax.get_xlim() == (0, 4)


def test_many_events_become_no_more_boxes_than_pixels(ax: Axes) -> None:
    count = 20_000
    one = rows(KERNELS, at(0, 0.00001, kind="compute"))
    kernels = one.loc[one.index.repeat(count)].assign(
        start_ns=START_NS + np.arange(count) * 1000, duration_ns=10
    )
    plots.timeline(kernels, rows(COPIES), rows(COLLECTIVES), ax=ax)
    assert len(drawn(ax)["compute"]) <= ax.get_window_extent().width


def test_what_is_shorter_than_a_pixel_does_not_hide_what_takes_the_time(ax: Axes) -> None:
    copy = rows(COPIES, at(500, 0.001, kind="DtoD"))
    plots.timeline(rows(KERNELS, at(0, 1000, kind="compute")), copy, rows(COLLECTIVES), ax=ax)
    compute, copied = ax.collections
    assert compute.get_zorder() > copied.get_zorder()


def test_bandwidth_has_a_line_per_operation_type_and_group(ax: Axes) -> None:
    table = measured(
        op=["all_reduce", "all_reduce", "broadcast", "barrier"],
        group=["0", "0", "$tensor$", "0"],
        size_bytes=[2_000_000, 1000, 1000, None],
        busbw_gb_s=[20.0, 1.0, 0.5, None],
    )
    plots.bandwidth(table, ax=ax)
    lines = {line.get_label(): line.get_xydata().tolist() for line in ax.lines}  # type: ignore[union-attr]
    assert lines["all_reduce  float32  group 0"] == [[1000, 1], [2_000_000, 20]]
    assert lines["broadcast  float32  group $tensor$"] == [[1000, 0.5]]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_ylabel() == "bus bandwidth [GB/s]"
    ax.figure.draw_without_rendering()  # type: ignore[union-attr] # a $ in a name is no formula


@pytest.mark.parametrize("most", [1.1, 4, 30, 900, 1e6])
def test_both_axes_are_labelled_whatever_they_span(ax: Axes, most: float) -> None:
    table = measured(size_bytes=[1000, int(1000 * most)], busbw_gb_s=[0.3, 0.3 * most])
    plots.bandwidth(table, ax=ax)
    for axis in (ax.xaxis, ax.yaxis):
        low, high = axis.get_view_interval()
        labelled = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
        assert 3 <= len(labelled) <= 10


@pytest.mark.parametrize("width", [4, 9, 20])
def test_a_legend_is_as_wide_as_the_picture(width: float) -> None:
    ax = Figure(figsize=(width, 3)).add_subplot()
    host = pd.DataFrame([{"rank": 0, "device": "cpu", "communication_ns": 3 * MS}])
    told = devices(span=10, compute=5, overlapped_communication=2, exposed_communication=2, idle=2)
    plots.breakdown(pd.concat([told, host], ignore_index=True).convert_dtypes(), ax=ax)
    legend = ax.get_legend()
    assert legend is not None
    assert len(legend.get_texts()) == 6
    assert legend.get_window_extent().width <= ax.get_window_extent().width


@pytest.mark.parametrize("bound", ["exact", "lower"])
def test_a_lower_bound_is_marked(ax: Axes, bound: str) -> None:
    plots.bandwidth(measured(size_bytes=[1000], busbw_gb_s=[1.0], bound=[bound]), ax=ax)
    legend = ax.get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert ("lower bound" in labels) == (bound == "lower")


@pytest.mark.parametrize("own_figure", [True, False])
def test_an_empty_table_says_so(ax: Axes, own_figure: bool) -> None:
    given = None if own_figure else ax
    for empty in (
        plots.breakdown(devices(span=1)[:0], ax=given),
        plots.timeline(rows(KERNELS), rows(COPIES), rows(COLLECTIVES), ax=given),
        plots.bandwidth(measured(size_bytes=[None], busbw_gb_s=[None]), ax=given),
    ):
        assert empty.texts[-1].get_text().startswith("nothing to show: ")


def test_pyplot_is_left_alone_when_axes_are_given(ax: Axes) -> None:
    from matplotlib import pyplot as plt

    plots.timeline(rows(KERNELS, at(0, 1, kind="compute")), rows(COPIES), rows(COLLECTIVES), ax=ax)
    plots.bandwidth(measured(size_bytes=[1], busbw_gb_s=[1.0]), ax=ax)
    assert plt.get_fignums() == []
    plots.bandwidth(measured(size_bytes=[1], busbw_gb_s=[1.0]))
    assert len(plt.get_fignums()) == 1
