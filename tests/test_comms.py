"""Every spelling that PyTorch, NCCL, RCCL and gloo use is understood."""

from __future__ import annotations

import pytest

from commtrace import comms

SPELLINGS = {
    "all_reduce": [
        "allreduce",
        "nccl:all_reduce",
        "c10d::allreduce_",
        "allreduce_coalesced",
        "symm_mem::multimem_one_shot_all_reduce_out",
        "symm_mem::one_shot_all_reduce_copy_out",
        "symm_mem::two_shot_all_reduce_",
        "_C_custom_ar::all_reduce",
        "vllm::all_reduce",
        "sglang::inplace_all_reduce",
    ],
    "all_gather": [
        "allgather",
        "_allgather_base",
        "c10d::_allgather_base_",
        "all_gather_into_tensor_coalesced",
        "all_gather_single",
        "nccl:_all_gather_base",
        "_c10d_functional::all_gather_into_tensor",
    ],
    "reduce_scatter": [
        "reduce_scatter",
        "_reduce_scatter_base",
        "c10d::_reduce_scatter_base_",
        "reduce_scatter_tensor",
        "reduce_scatter_single",
        "symm_mem::_low_contention_reduce_scatter",
        "symm_mem::fused_matmul_reduce_scatter",
    ],
    "broadcast": ["broadcast", "_broadcast_oop", "c10d::broadcast_"],
    "reduce": [
        "reduce",
        "nccl:reduce",
        "c10d::reduce_",
        "symm_mem::multimem_one_shot_reduce_out",
    ],
    "gather": ["gather", "c10d::gather_"],
    "scatter": ["scatter", "gloo:scatter"],
    "all_to_all": [
        "all_to_all",
        "all_to_allv",
        "c10d::alltoall_",
        "c10d::alltoall_base_",
        "symm_mem::all_to_all_vdev_2d_offset",
    ],
    "send": ["send", "nccl:send 0->1"],
    "recv": ["recv", "c10d::recv_", "c10d::recv_any_source_", "nccl:recv 0<-1"],
    "barrier": ["barrier", "c10d::barrier"],
}


@pytest.mark.parametrize(
    ("op", "name"), [(op, name) for op, names in SPELLINGS.items() for name in names]
)
def test_every_spelling_of_an_operation(op: str, name: str) -> None:
    assert comms.canonical_operation(name) == op


@pytest.mark.parametrize(
    "name",
    [
        "wait",
        "coalesced",
        "init",
        "aten::add",
        "",
        "nccl:coalesced",
        "symm_mem::nvshmem_put",
        "aten::multimem_all_reduce",
    ],
)
def test_what_is_no_operation(name: str) -> None:
    assert comms.canonical_operation(name) is None


def test_sizes_and_factors_are_those_of_nccl_tests() -> None:
    assert comms.full_size_bytes("all_gather", 100, 800, 8) == 800
    assert comms.full_size_bytes("reduce_scatter", 800, 100, 8) == 800
    assert comms.full_size_bytes("gather", 100, None, 8) == 800
    assert comms.full_size_bytes("scatter", None, 100, 8) == 800
    assert comms.full_size_bytes("all_to_all", 300, 500, 8) == 500
    assert comms.full_size_bytes("barrier", 4, 4, 8) is None
    factors = {op: comms.bus_factor(op, 8) for op in comms.OPERATIONS}
    assert factors == {
        "all_reduce": 1.75,
        "all_gather": 0.875,
        "reduce_scatter": 0.875,
        "all_to_all": 0.875,
        "gather": 0.875,
        "scatter": 0.875,
        "broadcast": 1.0,
        "reduce": 1.0,
        "send": 1.0,
        "recv": 1.0,
        "barrier": None,
    }


def test_types_have_torchs_names_and_sizes() -> None:
    torch = pytest.importorskip("torch")
    for dtype in {d for d in map(comms.canonical_dtype, comms._DTYPES) if d}:
        assert comms.element_bytes(dtype) == getattr(torch, dtype).itemsize
