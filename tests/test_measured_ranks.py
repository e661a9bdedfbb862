"""What is found where a rank is read is what it would be in the run, to the bit."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.generate import BASE_NS, write_run
from commtrace import rank_measures
from commtrace.measures import Measures, Sealed, learn, name_of
from commtrace.metrics.rank.activity import stream_activity
from commtrace.metrics.rank.devices import devices
from commtrace.metrics.rank.rows_of import measured_ranks
from commtrace.rank_measures import GPU_MEASURES, RANK_MEASURES, measured
from commtrace.reader import cache, read
from commtrace.reports.formats import json as json_report
from commtrace.run import Run, load
from commtrace.table import Coded, Columns


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks with a GPU each."""
    folder = tmp_path_factory.mktemp("generated")
    write_run(folder, 2, 1.5)
    return folder


@pytest.fixture(
    params=[
        "generated",
        "straggler/gloo-4",
        "straggler/nccl-4",
        "host_device_copies/nccl-1",
        "hta_dlrm_2_of_128",
    ]
)
def folder(request: pytest.FixtureRequest) -> Path:
    """Ranks with GPUs and without."""
    if request.param == "generated":
        made: Path = request.getfixturevalue("generated")
        return made
    if request.param.startswith("hta"):
        real: Path = request.getfixturevalue("real_traces")
        return real / request.param
    recorded: Path = request.getfixturevalue("recorded")
    return recorded / request.param


def known(run: Measures) -> set[tuple[str, int]]:
    return {(f"{module}:{name}", rank) for module, name, (rank,) in run.known}


def opened(its: Any) -> Columns:
    columns: Columns = its.opened() if isinstance(its, Sealed) else its
    return columns


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Coded):
        return a.decoded() == b.decoded()
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f") and a.dtype == b.dtype


def test_values(folder: Path) -> None:
    there, here = read([folder], workers=2, measured=measured), read([folder], workers=2)
    assert not here.known
    gpus = set(here.kernels["rank"].tolist())
    for rank in here.ranks["rank"].tolist():
        for function in (*RANK_MEASURES, *(GPU_MEASURES if rank in gpus else ())):
            assert (name_of(function), rank) in known(there)
            one, other = function(there, rank), function(here, rank)
            assert one.keys() == other.keys()
            for name in one:
                assert same(one[name], other[name]), (name_of(function), name)


def test_reports(folder: Path) -> None:
    there, here = (
        Run(read([folder], workers=2, measured=how), name="a run") for how in (measured, None)
    )
    documents = [json.loads(json_report.render(run.analysis())) for run in (there, here)]
    assert documents[0] == documents[1]


def test_what_was_read_before_is_known_too(generated: Path) -> None:
    first, again = (load(generated, workers=2) for _ in range(2))
    assert known(first.measures) == known(again.measures) != set()
    for key, its in first.measures.known.items():
        one, other = opened(its), opened(again.measures.known[key])
        for name in one:
            assert same(one[name], other[name])


def test_a_damaged_entry_is_read_and_measured_again(generated: Path) -> None:
    first = load(generated, workers=2)
    for entry in cache.entries():
        text = bytearray(entry.file.read_bytes())
        text[-9] ^= 1  # of what was measured, which comes last
        entry.file.write_bytes(text)
    again = load(generated, workers=2)
    assert known(again.measures) == known(first.measures)
    for key, its in first.measures.known.items():
        one, other = opened(its), opened(again.measures.known[key])
        for name in one:
            assert same(one[name], other[name])


def test_ranks_of_which_some_were_measured(generated: Path) -> None:
    """Those of files read elsewhere lie between those that this process measures together."""
    there = read([generated], workers=2, measured=measured)
    here, half = (read([generated], workers=2) for _ in range(2))
    its = {
        f"{module}:{name}": found
        for (module, name, args), found in there.known.items()
        if args == (1,)
    }
    learn(half, 1, its)
    assert measured_ranks(here) == [(0, 1)]
    assert measured_ranks(there) == measured_ranks(half) == [(0,), (1,)]
    for by_step in (False, True):
        expected = devices(here, by_step=by_step).frame()
        assert all(devices(run, by_step=by_step).frame().equals(expected) for run in (there, half))
    assert (
        stream_activity(here).keys()
        == stream_activity(there).keys()
        == stream_activity(half).keys()
    )


def test_what_this_process_reads_waits_to_be_asked_for(recorded: Path) -> None:
    assert not load(recorded / "all_gather" / "gloo-4", cache=False).measures.known


def test_cycles_of_a_rank_are_measured_together(tmp_path: Path) -> None:
    """Its files tell nothing by themselves of what lies between them."""
    for rank, file in enumerate(write_run(tmp_path / "generated", 2, 0.6)):
        text = gzip.decompress(file.read_bytes()).decode()
        for cycle in range(2 - rank):
            moved = text.replace(str(BASE_NS), str(BASE_NS + cycle * 10**10))
            (tmp_path / f"host_{rank}.{BASE_NS + cycle}.pt.trace.json").write_text(moved)
    run = read([tmp_path / "*.json"], workers=2, measured=measured)
    assert len(run.pauses[0]) == 1
    assert not known(run)


def test_one_that_breaks_is_left_to_who_asks_for_it(
    generated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(run: Measures, rank: int) -> dict[str, Any]:
        raise ZeroDivisionError

    monkeypatch.setattr(rank_measures, "RANK_MEASURES", (breaks, *RANK_MEASURES))
    run = read([generated], workers=2, measured=rank_measures.measured)
    assert not any(name.endswith("breaks") for name, _ in known(run))
    assert (name_of(RANK_MEASURES[-1]), 0) in known(run)


def test_no_process_that_reads_loads_pandas(generated: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from commtrace.rank_measures import measured; "
        "from commtrace.reader.workers import _outcome; "
        f"part = _outcome(Path({str(generated / 'rank0.json.gz')!r}), (0, 'assumed')); "
        "print(len(measured(part)), {'pandas', 'torch', 'matplotlib'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{len(RANK_MEASURES) + len(GPU_MEASURES)} set()\n"
