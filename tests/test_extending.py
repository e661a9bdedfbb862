"""The files that docs/extending.md shows are a rule, a measure, a format and a workload."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from commtrace.record.launch import record
from commtrace.record.workloads import parse
from commtrace.run import Run, load
from commtrace.synthetic import Tiny
from tests.pages import blocks

FILES = {
    block.text.partition("\n")[0][2:]: block.text for block in blocks("docs/extending.md", "python")
}


@pytest.fixture
def module(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ModuleType:
    """One of the files, imported under the name that it would have."""
    place = Path(request.param)
    name = ".".join(place.with_suffix("").parts)
    file = tmp_path / place.name
    file.write_text(FILES[request.param], encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    its = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, its)
    spec.loader.exec_module(its)
    return its


@pytest.mark.parametrize("module", ["commtrace/rules/many_barriers.py"], indirect=True)
def test_the_rule_fires_where_it_must(module: ModuleType) -> None:
    rule = module.ManyBarriers()
    assert rule.name() == "many-barriers"
    (finding,) = rule.check(rule.bad())
    assert finding.summary.startswith("20 barriers take 1 ms")
    assert not list(rule.check(rule.good()))


@pytest.mark.parametrize("module", ["commtrace/metrics/rank/longest_kernels.py"], indirect=True)
def test_the_measure_is_as_described(module: ModuleType) -> None:
    run = Tiny(2)
    run.kernel(0, 0, 10, name="short")
    run.kernel(0, 20, 30, name="long")
    table = module.longest_kernels(run.trace())
    assert table.dicts() == [{"rank": 0, "name": "long", "duration_ns": 30_000}]
    assert list(table.frame()) == [column.name for column in module.LONGEST_KERNELS.columns]


@pytest.mark.parametrize("module", ["commtrace/reports/formats/tsv.py"], indirect=True)
def test_the_format_has_a_line_for_each_finding(module: ModuleType) -> None:
    from commtrace.rules.straggler import Straggler

    analysis = Run(Straggler.bad(), "run").analysis(select=["straggler"])
    head, *lines = module.render(analysis).splitlines()
    assert head.split("\t") == ["rule", "ranks", "cost_ns", "summary"]
    assert [line.split("\t")[0] for line in lines] == ["straggler"]


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded")
def test_the_workload_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "halves.py"
    file.write_text(FILES["workloads/halves.py"], encoding="utf-8")
    assert parse(file).answer == ("duration_ns_p50", "whole", "halves")
    folder = record(str(file), world_size=2, backend="gloo", out=tmp_path / "recording")
    calls = load(folder).collectives
    assert len(calls) == 2 * 5 * 3
