"""Every collective that four gloo ranks call is in the table, with its true bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.profiler import ProfilerActivity, profile


def calls(r, n, sub):
    ones, empty = torch.ones, torch.empty
    dist.all_reduce(ones(1000))
    dist.all_reduce(ones(2000, dtype=torch.float16), async_op=True).wait()
    dist.broadcast(ones(5, dtype=torch.int64), 1)
    dist.reduce(ones(30), 2)
    dist.all_gather([empty(7) for _ in range(n)], ones(7))
    dist.all_gather_into_tensor(empty(8 * n, dtype=torch.bfloat16), ones(8, dtype=torch.bfloat16))
    dist.reduce_scatter(empty(9), [ones(9) for _ in range(n)])
    dist.reduce_scatter_tensor(empty(10), ones(10 * n))
    dist.all_to_all_single(empty(11 * n), ones(11 * n))
    dist.all_to_all_single(empty(10), ones((1 + r) * n), [1, 2, 3, 4], [1 + r] * n)
    dist.gather(ones(13), [empty(13) for _ in range(n)] if r == 0 else None, 0)
    dist.scatter(empty(15), [ones(15) for _ in range(n)] if r == 1 else None, 1)
    dist.barrier()
    if r in (0, 2):
        dist.all_reduce(ones(17, dtype=torch.float64), group=sub)
    right, left = (r + 1) % n, (r - 1) % n
    for work in [dist.isend(ones(21), right), dist.irecv(empty(21), left)]:
        work.wait()


def rank(r, n, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=r, world_size=n)
    sub = dist.new_group([0, 2])
    calls(r, n, sub)
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        calls(r, n, sub)
        dump = torch._C._distributed_c10d._dump_fr_trace_json()
        profiler.add_metadata_json("flight_recorder", dump)
    profiler.export_chrome_trace(f"{folder}/rank{r}.json")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Forked, they need not import torch once more each.
    mp.start_processes(rank, (4, sys.argv[1]), nprocs=4, start_method="fork")
"""


def expected(r: int) -> list[tuple[Any, ...]]:
    """Operation, type, bytes in, bytes out, ranks: in the order of the program."""
    mine = [
        ("all_reduce", "float32", 4000, 4000, 4),
        ("all_reduce", "float16", 4000, 4000, 4),
        ("broadcast", "int64", 40, 40, 4),
        ("reduce", "float32", 120, 120, 4),
        ("all_gather", "float32", 28, 112, 4),
        ("all_gather", "bfloat16", 16, 64, 4),
        ("reduce_scatter", "float32", 144, 36, 4),
        ("reduce_scatter", "float32", 160, 40, 4),
        ("all_to_all", "float32", 176, 176, 4),
        ("all_to_all", "float32", 16 * (1 + r), 40, 4),
        ("gather", "float32", 52, 208 if r == 0 else 0, 4),
        ("scatter", "float32", 240 if r == 1 else 0, 60, 4),
        ("barrier", None, None, None, 4),
    ]
    if r in (0, 2):
        mine.append(("all_reduce", "float64", 136, 136, 2))
    return mine


@pytest.fixture(scope="module")
def ranks(
    tmp_path_factory: pytest.TempPathFactory, reference_scan: Any, plain_tables: Any
) -> list[Any]:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("gloo")
    (folder / "program.py").write_text(PROGRAM)
    subprocess.run(
        [sys.executable, str(folder / "program.py"), str(folder)],
        env={**os.environ, "TORCH_FR_BUFFER_SIZE": "2000"},
        check=True,
        capture_output=True,
        timeout=200,
    )
    return [plain_tables(reference_scan(Path(folder / f"rank{r}.json"))) for r in range(4)]


@pytest.mark.slow
def test_every_call_is_there_once_with_its_bytes(ranks: list[Any]) -> None:
    for r, tables in enumerate(ranks):
        rows = sorted(tables.collectives, key=lambda row: row["launch_ns"])
        found = [
            (w["op"], w["dtype"], w["in_bytes"], w["out_bytes"], w["group_size"])
            for w in rows
            if w["op"] not in ("send", "recv")
        ]
        assert found == expected(r)
        assert {row["provenance"] for row in rows} == {"operator"}
        assert tables.notes == {}


@pytest.mark.slow
def test_a_collectives_number_is_the_same_on_every_rank(ranks: list[Any]) -> None:
    by_rank = []
    for tables in ranks:
        rows = [w for w in tables.collectives if w["op"] not in ("send", "recv")]
        assert {w["group_provenance"] for w in rows} == {"flight-recorder"}
        by_rank.append({w["seq"]: (w["op"], w["dtype"]) for w in rows if w["group_size"] == 4})
        assert len(by_rank[-1]) == 13
    assert all(other == by_rank[0] for other in by_rank)


@pytest.mark.slow
def test_point_to_point_has_its_bytes_on_both_sides(ranks: list[Any]) -> None:
    for r, tables in enumerate(ranks):
        sides = {w["op"]: w for w in tables.collectives if w["op"] in ("send", "recv")}
        assert (sides["send"]["in_bytes"], sides["recv"]["out_bytes"]) == (84, 84)
        if r in (1, 3):  # members of one group only
            assert (sides["send"]["peer"], sides["recv"]["peer"]) == ((r + 1) % 4, (r - 1) % 4)
