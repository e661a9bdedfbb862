"""A training program that computes in float64: what its matrix products take longer."""

from __future__ import annotations

import gzip
import json
from itertools import product
from pathlib import Path

import pytest

from commtrace.diagnosis import Finding
from commtrace.metrics.run.double_products import double_products_ns, double_share
from commtrace.rules import diagnose
from commtrace.rules.full_precision_payload import FullPrecisionPayload
from commtrace.run import load
from commtrace.synthetic import Tiny


def converted(source: Path, to: Path, *, label: str) -> Path:
    """A recording as if its tensors were of float64, with 2 ms of products in each step."""
    for file in sorted(source.glob("rank*.json.gz")):
        its = json.loads(gzip.decompress(file.read_bytes()).replace(b'"float"', b'"double"'))
        steps = [one for one in its["traceEvents"] if one["name"].startswith("ProfilerStep#")]
        for step in steps:
            at = {name: step[name] for name in ("ph", "pid", "tid", "ts")}
            shown = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["double", "double"]}
            product = {**at, "cat": "cpu_op", "name": "aten::mm", "dur": 2_000, "args": shown}
            update = {**at, "cat": "user_annotation", "name": label, "dur": 1}
            its["traceEvents"] += [product, update]
        (to / file.name.removesuffix(".gz")).write_text(json.dumps(its))
    return to


def found(folder: Path) -> list[Finding]:
    """Of findings that count from a ten-thousandth of the time, but not what is sent."""
    rule = FullPrecisionPayload(min_step_share=1.0, large_step_share=1e-4)
    return [*rule.check(load(folder).measures)]


def test_a_model_in_float64_takes_twice_as_long(recorded: Path, tmp_path: Path) -> None:
    source = recorded / "ddp_training" / "gloo-4"
    (finding,) = found(converted(source, tmp_path, label="Optimizer.step#SGD.step"))
    assert "reduce float64, in which the model computes" in finding.summary
    assert finding.cost_ns == double_products_ns(load(tmp_path).measures) // 2 == 5 * 1_000_000
    assert finding.confidence == "low"
    assert finding.advice.startswith("train in float32")


def test_a_solver_may_need_it(recorded: Path, tmp_path: Path) -> None:
    folder = converted(recorded / "ddp_training" / "gloo-4", tmp_path, label="update")
    assert double_products_ns(load(folder).measures) == 0
    assert double_share(load(folder).measures) == 1
    assert not found(folder)
    assert not [*FullPrecisionPayload(min_step_share=1e-4).check(load(folder).measures)]


def test_what_computes_in_float32_and_sends_float64_is_sure(recorded: Path, tmp_path: Path) -> None:
    """All operators but the collectives are back to float32."""
    for file in converted(recorded / "ddp_training" / "gloo-4", tmp_path, label="u").iterdir():
        its = json.loads(file.read_text())
        for event in its["traceEvents"]:
            if event["name"].startswith("aten::") and "Input type" in event["args"]:
                types = [one.replace("double", "float") for one in event["args"]["Input type"]]
                event["args"]["Input type"] = types
        file.write_text(json.dumps(its))
    run = load(tmp_path).measures
    assert double_share(run) == 0
    rule = FullPrecisionPayload(min_bytes=1, min_step_share=1e-4, large_step_share=1e-4)
    (finding,) = rule.check(run)
    assert "while 0 % of the operators' time is in double precision" in finding.summary


@pytest.mark.parametrize(
    ("size", "label", "fires"),
    [
        (500_000, "Optimizer.step#SGD.step", True),
        (500_000, "solve", False),  # needs its digits
        (2_000_000, "solve", True),
        (50_000, "Optimizer.step#SGD.step", False),
    ],
)
def test_of_training_smaller_sums_in_float64_count(size: int, label: str, fires: bool) -> None:
    run = Tiny(2, backend="gloo")
    call = {"thread": 1, "stream": 50, "asynchronous": 0, "dtype": "float64"}
    for step, rank in product(range(6), range(2)):
        run.step(rank, step, 10_000 * step, 10_000)
        run.op(rank, 10_000 * step, 2_000)
        run.collective(rank, "all_reduce", 10_000 * step + 2_010, 7_000, size=size, **call)
        run.gap(rank, 10_000 * step + 2_010, 7_000)
        run.step(rank, step, 10_000 * step + 9_100, 800, label=label)
    its = diagnose(run.trace(), select=["full-precision-payload"]).findings
    assert bool(its) == fires
