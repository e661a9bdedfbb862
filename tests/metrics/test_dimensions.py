"""Process groups are of the dimension that the program names, else that their traffic shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import commtrace as ct
from commtrace import synthetic
from commtrace.metrics.run.dimensions import dimensions
from commtrace.metrics.run.group_dimensions import group_dimensions, spoken
from commtrace.metrics.run.group_names import named_dimension, spoken_names
from commtrace.metrics.run.waits import matched
from commtrace.trace_tables import GROUPS

from .conftest import Layout

LAYOUTS = [
    Layout({"dp": 8}),
    Layout({"dp": 4, "tp": 2}, grads="zero1", tp="sequence", recompute=True),
    Layout({"tp": 4, "dp": 2}, grads="fsdp", tp="sequence"),
    Layout({"pp": 2, "dp": 2, "tp": 2}, pp="gpipe", micro_batches=1, steps=1),
    Layout({"tp": 2, "pp": 4}),
    Layout({"dp_replicate": 2, "dp_shard": 4}, grads="hsdp", layers=3),
    Layout({"dp_shard": 2, "pp": 2, "dp_replicate": 2}, grads="hsdp", micro_batches=2),
    Layout({"cp": 2, "dp": 2, "tp": 2}, cp="ulysses"),
    Layout({"dp": 2, "cp": 4}, cp="packed", grads="fsdp"),
    Layout({"pp": 2, "cp": 2, "tp": 2}, cp="ring"),
    Layout({"dp": 2, "ep": 4}, grads="fsdp"),
    Layout({"ep": 2, "pp": 2, "dp": 2}, even_experts=True),
    Layout({"dp": 2, "tp": 2, "pp": 2, "ep": 2}, steps=1, layers=2, micro_batches=2),
    Layout({"cp": 2, "tp": 2, "ep": 2, "dp": 2}, steps=1, layers=2, micro_batches=2),
]
NAMES = {
    "mesh_dp_replicate": "dp_replicate",
    "mesh_dp_cp": "dp_cp",
    "TENSOR_MODEL_PARALLEL_GROUP": "tp",
    "PIPELINE_MODEL_PARALLEL_GROUP": "pp",
    "DATA_PARALLEL_GROUP_WITH_CP_GLOO": "dp",
    "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": "dp",
    "EXPERT_MODEL_PARALLEL_GROUP": "ep",
    "EXPERT_DATA_PARALLEL_GROUP": "dp",
    "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0": "cp",
    "tp:0": "tp",
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": "",
    "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": "",
    "EMBEDDING_GROUP": "",
    "mesh_dim_1": None,
    "default_pg:split:2": None,
    "undefined": None,
    "c180dae7743d700d8e30df1902fc6b1e_0": None,
}


@pytest.mark.parametrize(("description", "dimension"), NAMES.items())
def test_names_are_read_as_programs_write_them(description: str, dimension: str | None) -> None:
    assert named_dimension(description) == dimension


def by_name(run: ct.Measures) -> dict[str, str | None]:
    """Each group's dimension, by the group's name."""
    told = {row["communicator"]: row["dimension"] for row in group_dimensions(run).dicts()}
    used = zip(
        run.rows("collectives").coded("group").decoded(),
        matched(run).matches.coded("communicator").decoded(),
        strict=True,
    )
    return {group: told[communicator] for group, communicator in set(used)}


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(layout.mesh))
def test_unnamed_groups_are_known_by_their_traffic(
    layout: Layout, train: Callable[[Layout], Any]
) -> None:
    trained = train(layout)
    found = by_name(trained.run)
    assert found == {group: trained.truth[group] for group in found}
    assert group_dimensions(trained.run).coded("dimension_provenance").occurring() == ["inferred"]


@pytest.mark.parametrize("names", ["mesh", "megatron"])
def test_no_name_is_contradicted(names: str, train: Callable[[Layout], Any]) -> None:
    run = train(replace(LAYOUTS[-1], names=names)).run
    told = run.groups.drop_duplicates("group").set_index("group")["description"]
    for group, dimension in by_name(run).items():
        if group != "0":
            assert dimension == (named_dimension(told[group]) or None)


def test_what_is_no_mesh_has_no_dimension() -> None:
    run = synthetic.Tiny(ranks=4)
    run.groups = {"1": (0, 3)}
    for rank in (0, 3):
        run.kernel(rank, 0, 1000, step=0)
        run.collective(rank, "all_reduce", 900, 50, size=1 << 20, group="1", step=0)
    assert by_name(run.trace()) == {"1": None}


@pytest.mark.parametrize(("exchanges", "dimension"), [(2, None), (8, "cp")])
def test_two_exchanges_a_step_are_of_embedding_tables(
    exchanges: int, dimension: str | None
) -> None:
    """Attention swaps four times in each layer, there and back."""
    run = synthetic.Tiny(ranks=4)
    run.groups = {"a": (0, 1), "b": (2, 3), "dp_0": (0, 2), "dp_1": (1, 3)}
    for step, rank in product(range(4), range(4)):
        begin = 2_000 * step
        run.step(rank, step, begin, 1_900)
        for i in range(exchanges):
            its = {"group": "ab"[rank // 2], "size": (1 + i % 2) << 20}
            run.collective(rank, "all_to_all", begin + 100 * i, 50, **its)
        run.collective(rank, "all_reduce", begin + 1_000, 500, group=f"dp_{rank % 2}", size=1 << 22)
    known = by_name(run.trace())
    assert known["a"] == dimension


def test_an_exchange_alone_is_no_layout() -> None:
    """As in a benchmark: nothing shows what is exchanged."""
    run = synthetic.Tiny(ranks=2)
    for number in range(8):
        for rank in range(2):
            run.collective(rank, "all_to_all", number * 100, 50, size=1 << 20)
    assert by_name(run.trace()) == {"0": None}


@pytest.mark.parametrize(
    ("pairs", "apart_us", "dimension"),
    [
        (((0, 1), (1, 2)), 2.0, None),
        (((0, 1), (1, 2)), 400.0, "pp"),
        (((0, 1), (0, 2)), 400.0, None),  # a learner and two actors
    ],
)
def test_a_chain_is_a_pipeline_only_if_messages_go_in_turn(
    pairs: tuple[tuple[int, int], ...], apart_us: float, dimension: str | None
) -> None:
    run = synthetic.Tiny(3)
    for step in range(6):
        for left, right in pairs:
            for source, target, at in ((left, right, 100.0), (right, left, 100.0 + apart_us)):
                start = 1000.0 * step + at
                run.collective(source, "send", start, 50, size=1 << 20, peer=target)
                run.collective(target, "recv", start, 50, size=1 << 20, peer=source)
    assert by_name(run.trace()) == {"0": dimension}


def test_losses_and_norms_are_no_dimension() -> None:
    run = synthetic.Tiny(ranks=2)
    for rank in range(2):
        run.kernel(rank, 0, 1000, step=0)
        run.collective(rank, "all_reduce", 900, 50, size=8, step=0)
    assert by_name(run.trace()) == {"0": None}


def test_siblings_are_one_row() -> None:
    """Two groups of two: counts are summed, exposure is the mean of the ranks."""
    run = synthetic.Tiny(ranks=4)
    run.groups = {"1": (0, 1), "2": (2, 3)}
    for group, members in run.groups.items():
        for rank in members:
            run.collective(rank, "all_reduce", 0, 100 * int(group), size=1 << 20, group=group)
    measures = run.trace()
    groups = measures.rows("groups").dicts()
    named = [{**row, "description": "mesh_tp"} for row in groups]
    (row,) = dimensions(replace(measures, groups=GROUPS.of_dicts(named))).dicts()
    assert row == {
        "op": "all_reduce",
        "dimension": "tp",
        "dimension_provenance": "named",
        "group_size": 2,
        "dtype": "float32",
        "size_bytes": 1 << 20,
        "count": 2,
        "groups": 2,
        "duration_ns_total": 600_000,
        "wait_ns_total": 0,
        "exposed_ns": 150_000,
    }


def test_a_group_is_spoken_of_by_its_dimension() -> None:
    run = synthetic.Tiny(ranks=2)
    for rank in range(2):
        run.collective(rank, "all_reduce", 0, 100, size=1 << 20)
    assert spoken(run.trace(), "0,1") == "ranks 0–1"
    groups = [{**row, "description": "mesh_tp"} for row in run.trace().rows("groups").dicts()]
    named = replace(run.trace(), groups=GROUPS.of_dicts(groups))
    assert spoken(run.trace(), "0,2,3,4#1") == "ranks 0, 2–4"
    assert spoken(run.trace(), "0") == "rank 0"
    assert spoken(named, "0,1") == "tp (ranks 0–1)"


@pytest.mark.timeout(60)
def test_a_thousand_groups_are_no_effort() -> None:
    run = synthetic.Tiny(ranks=2_000)
    run.groups = {str(n): (2 * n, 2 * n + 1) for n in range(1_000)}
    for n in range(1_000):
        run.kernel(2 * n, n, 9, step=0)
        run.collective(2 * n, "all_reduce", n, 10, size=1 << 20, group=str(n), step=0)
    measures = run.trace()
    matched(measures)
    assert len(group_dimensions(measures)) == 1_000


MESH = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
sharded = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_replicate", "dp_shard"))
model = fully_shard(torch.nn.Linear(64, 64), mesh=sharded)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    y = torch.ones(8, 64)
    for _ in range(2):
        dist.all_reduce(y @ torch.eye(64), group=mesh["tp"].get_group())
    model(y).sum().backward()
    dist.all_reduce(torch.ones(50_000), group=mesh["dp"].get_group())
    optimizer.step()
dist.destroy_process_group()
"""
PIPELINE = """
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, stages = dist.get_rank(), dist.get_world_size()
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
for _ in range(4):
    batch = torch.ones(8, 64)
    for source, target in ((rank - 1, rank + 1), (rank + 1, rank - 1)):
        for _ in range(4):
            if 0 <= source < stages:
                dist.recv(batch, source)
            batch = batch @ torch.eye(64)
            if 0 <= target < stages:
                dist.send(batch, target)
    optimizer.step()
dist.destroy_process_group()
"""


def recorded(program: str, folder: Path) -> ct.Measures:
    (folder / "program.py").write_text(program)
    from commtrace.record import Plan, record_program

    script = str(folder / "program.py")
    plan = Plan(first=2, steps=2)
    return ct.load(
        record_program([script], plan=plan, world_size=4, out=folder / "out"), workers=1
    ).measures


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded")
def test_a_recorded_mesh_names_its_dimensions(tmp_path: Path) -> None:
    table = dimensions(recorded(MESH, tmp_path)).frame()
    others = table[table["dimension_provenance"] != "named"]
    assert others.empty, others.to_dict("records")
    assert set(zip(table["dimension"], table["op"], strict=True)) == {
        ("dp", "all_reduce"),
        ("tp", "all_reduce"),
        ("dp_shard", "all_gather"),
        ("dp_shard", "reduce_scatter"),
        ("dp_replicate", "all_reduce"),
    }
    assert set(table["groups"]) == {2}


@pytest.mark.slow
@pytest.mark.usefixtures("preloaded")
def test_a_recorded_pipeline_is_one(tmp_path: Path) -> None:
    table = dimensions(recorded(PIPELINE, tmp_path)).frame()
    assert set(table["dimension"]) == {"pp"}
    assert set(table["dimension_provenance"]) == {"inferred"}


def test_a_numbered_group_is_spoken_of_as_it_is_described() -> None:
    described = [
        ("2", "weight_update_group"),
        ("2", "weight_update_group"),
        ("3", "one"),
        ("3", "another"),  # on another rank
        ("0", "default_pg"),
        ("4", "shared"),
        ("5", "shared"),
        ("mine", "weights"),
    ]
    rows = [
        {**dict.fromkeys(column.name for column in GROUPS.columns), "rank": rank} | its
        for rank, its in enumerate({"group": g, "description": d} for g, d in described)
    ]
    assert spoken_names(GROUPS.of_dicts(rows)) == {"2": "weight_update_group"}
