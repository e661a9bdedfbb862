"""The same reading on a Dask cluster, whose workers are processes that may not fork."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commtrace.cli import main
from commtrace.engine import Lost, each
from commtrace.metrics.rank.devices import devices
from commtrace.reader.workers import read_each
from commtrace.run import load

distributed = pytest.importorskip("distributed")
# What Dask warns of is Dask's.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.upload_file(__file__)
        yield client


def dies_once(mark: Path) -> str:
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return mark.name


def fails(number: int) -> float:
    return 1 / number


def test_a_run_is_the_one_that_processes_read(client: Any, recorded: Path) -> None:
    folder = recorded / "straggler" / "gloo-4"
    ours = load(folder, cache=False).measures
    theirs = load(folder, cache=False, executor=client.get_executor()).measures
    for table in ("collectives", "ops", "host_gaps", "steps", "groups", "ranks", "probes"):
        assert getattr(ours, table).equals(getattr(theirs, table)), table
    assert ours.notes == theirs.notes
    assert theirs.measured == {0, 1, 2, 3}
    assert devices(ours).frame().equals(devices(theirs).frame())


def test_a_missing_file_is_one_note(client: Any, recorded: Path, tmp_path: Path) -> None:
    (file,) = (recorded / "straggler" / "gloo-4").glob("rank0.json*")
    files = dict.fromkeys((file, tmp_path / "rank1.json"), (0, "assumed"))
    found = dict(read_each(files, None, client.get_executor()))
    assert "cannot be read: No such file" in found[tmp_path / "rank1.json"].why  # type: ignore[union-attr]
    assert found[file].rank == 0  # type: ignore[union-attr]


def test_a_fault_costs_its_own_item(client: Any) -> None:
    found = dict(each(fails, [0, 1, 2], client.get_executor()))
    assert found == {0: Lost(fault=found[0].fault), 1: 1.0, 2: 0.5}  # type: ignore[union-attr]
    assert "ZeroDivisionError" in str(found[0])


def test_a_worker_that_is_killed_costs_time_alone(client: Any, tmp_path: Path) -> None:
    items = [tmp_path / name for name in "abcd"]
    for item in items[1:]:
        item.touch()
    assert dict(each(dies_once, items, client.get_executor())) == {i: i.name for i in items}


def test_the_command_line_reads_there(
    client: Any, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, address = str(recorded / "straggler" / "gloo-4"), client.scheduler.address
    assert main(["analyze", folder, "--no-cache"]) == 0
    here = capsys.readouterr().out
    assert main(["analyze", folder, "--no-cache", "--scheduler", address]) == 0
    assert capsys.readouterr().out == here


def test_no_scheduler_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commtrace.engine.dask._PATIENCE_S", 0.2)
    began = time.monotonic()
    assert main(["analyze", str(tmp_path), "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert time.monotonic() - began < 20
    error = capsys.readouterr().err
    assert error.startswith("commtrace: --scheduler tcp://127.0.0.1:1: no scheduler answers there")
    assert error.count("\n") == 1
