"""Programs that start their ranks themselves, recorded as a user does it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import commtrace
from commtrace.errors import RecordError
from commtrace.record import record_program
from tests.ports import free_port

torch = pytest.importorskip("torch")

# What it needs it imports by name, as the tutorials do: in a spawned process that comes first.
TRAIN = """
import os, sys
import torch
import torch.multiprocessing as mp
from torch.distributed import all_reduce, destroy_process_group, init_process_group
from torch.utils.data import DataLoader, TensorDataset

def main(rank, size, fault, port):
    assert "RANK" not in os.environ and "TORCHELASTIC_RUN_ID" not in os.environ
    where = {"init_method": f"tcp://127.0.0.1:{port}", "rank": rank, "world_size": size}
    init_process_group("gloo", **where)
    weight = torch.nn.Parameter(torch.ones(64))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for batch, in DataLoader(TensorDataset(torch.ones(14, 64)), num_workers=fault == "fork"):
        weight.grad = batch[0] * weight.detach()
        all_reduce(weight.grad)
        optimizer.step()
        if fault == "raise" and rank == 1:
            raise ValueError("no more data")
        if fault == "short" and rank == 1:
            os._exit(0)
    destroy_process_group()

if __name__ == "__main__":
    how, port = sys.argv[1:]
    if how == "spawn":
        mp.spawn(main, (2, how, port), nprocs=2)
    else:
        context = mp.get_context("fork")
        ranks = [context.Process(target=main, args=(rank, 2, how, port)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        sys.exit(max(abs(rank.exitcode) for rank in ranks))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("spawns") / "train.py"
    path.write_text(TRAIN)
    return str(path)


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_ranks_that_the_program_starts_itself_are_recorded(
    train: str, tmp_path: Path, how: str
) -> None:
    out = tmp_path / "out"
    said: list[str] = []
    record_program([train, how, str(free_port())], out=out, tell=said.append)
    manifest = json.loads((out / "manifest.json").read_text("utf-8"))
    assert (manifest["status"], manifest["backend"], manifest["world_size"]) == (
        *("complete", "gloo"),
        2,
    )
    assert [one["rank"] for one in manifest["ranks"]] == [0, 1]
    assert [one["steps"] for one in manifest["ranks"]] == [[5, 12]] * 2
    # Of 14 steps one lies behind the window undisturbed, and one before it counts, too.
    assert [len(one["unrecorded_steps_ns"]) for one in manifest["ranks"]] == [2, 2]
    assert [one["machine"]["processes"] for one in manifest["ranks"]] == [2, 2]
    assert [reading["rank"] for reading in manifest["clock_probe"]] == [0, 0, 1, 1]
    assert [file["file"] for file in manifest["files"]] == ["rank0.json.gz", "rank1.json.gz"]
    assert any(line.startswith("recorded steps 5 to 12, ") for line in said)
    run = commtrace.load(out)
    assert sorted(run.collectives.groupby("rank").size().to_dict().items()) == [(0, 8), (1, 8)]
    assert set(run.measures.ranks["world_size"]) == {2}


@pytest.mark.usefixtures("preloaded")
@pytest.mark.parametrize("how", ["raise", "short"])
def test_one_of_them_fails(train: str, tmp_path: Path, how: str) -> None:
    out = tmp_path / "out"
    why = f"rank 0: ended with exit status 1; what was recorded is in {out}"
    with pytest.raises(RecordError, match=re.escape(why)):
        record_program([train, how, str(free_port())], out=out)
    manifest = json.loads((out / "manifest.json").read_text("utf-8"))
    assert manifest["status"] == "failed"
    assert "RuntimeError" in (out / "rank0.log").read_text()  # the other's, who waits for it


@pytest.mark.usefixtures("preloaded")
def test_they_are_not_started_twice(train: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"the program starts its ranks itself, with .* -n 1;"):
        record_program([train, "spawn", "0"], world_size=2, out=tmp_path / "out")
