"""Agreement with Holistic Trace Analysis on the same files, and where it is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import commtrace as ct

pytest.importorskip("hta")

ASK_HTA = """
import json, sys, warnings
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
hta = TraceAnalysis({0: sys.argv[1]}, "", include_last_profiler_step=True)
overlap = hta.get_comm_comp_overlap(visualize=False).to_dict("records")[0]
parts = hta.get_temporal_breakdown(visualize=False).to_dict("records")[0]
print(json.dumps({**overlap, **parts}))
"""


def hta(path: Path) -> dict[str, float]:
    # Without this HTA rounds starts up and ends down to whole microseconds.
    environment = {**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"}
    command = [sys.executable, "-c", ASK_HTA, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def ours(path: Path) -> dict[str, Any]:
    (device,) = ct.load([path]).overlap(by="device").to_dict("records")
    return dict(device)


@pytest.mark.parametrize(
    "name", ["hta_a100_resnet_nccl_metadata", "hta_v100_allreduce_no_metadata"]
)
def test_overlap_idle_and_compute_agree(real_traces: Path, name: str) -> None:
    path = real_traces / f"{name}.json.gz"
    theirs, mine = hta(path), ours(path)
    assert mine["overlap_pct"] == pytest.approx(theirs["comp_comm_overlap_pctg"], abs=0.005)
    # HTA keeps float microseconds; its sums are off by a few nanoseconds.
    for measure, name_of_hta in (
        ("idle_ns", "idle_time(us)"),
        ("compute_ns", "compute_time(us)"),
        ("span_ns", "kernel_time(us)"),
    ):
        assert mine[measure] / 1e3 == pytest.approx(theirs[name_of_hta], abs=0.01)


@pytest.mark.parametrize("name", ["hta_16gpu_three_nccl_streams", "tracelens_mi300_resnet_rccl"])
def test_hta_forgets_kernels_launched_before_the_window(real_traces: Path, name: str) -> None:
    """HTA drops GPU events without a launch in the trace; they ran all the same."""
    path = real_traces / f"{name}.json.gz"
    assert ours(path)["compute_ns"] / 1e3 > hta(path)["compute_time(us)"] + 1000
