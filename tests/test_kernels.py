"""Kernels that communicate are told from those that do not, by their names alone."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from commtrace import kernels
from commtrace.kernels import Kernel

NCCL = {
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)": ("all_reduce", "float32"),
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)": ("all_reduce", "float32"),
    "ncclDevKernel_ReduceScatter_Sum_bf16_TREE_LL()": ("reduce_scatter", "bfloat16"),
    "ncclDevKernel_Reduce_Sum_f16_RING_LL()": ("reduce", "float16"),
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)": (None, "int8"),
    "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)": (None, None),
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)": (None, None),
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": ("all_reduce", "float32"),
    "ncclSendRecvKernel_copy_i8(ncclColl)": (None, None),
    "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)": ("all_reduce", "bfloat16"),
    "ncclSymkDevKernel_ReduceScatter_RailA2A_LsaLD_sum_f16(x)": ("reduce_scatter", "float16"),
    "ncclKernel_ReduceScatter_RING_LL_Sum___nv_bfloat16(x)": ("reduce_scatter", "bfloat16"),
    "mscclKernel_Sum_hip_bfloat16_Simple_false(ncclDevComm*)": (None, "bfloat16"),
}

ONE_OPERATION = {
    "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(x)": "all_reduce",
    "void multimem_one_shot_all_reduce_kernel<float, 16>(x)": "all_reduce",
    "void multimem_one_shot_reduce_kernel<float, 16>(x)": "reduce",
    "void <unnamed>::multimem_all_gather_kernel<16>(char*)": "all_gather",
    "_one_shot_all_reduce_kernel": "all_reduce",
    "two_shot_all_reduce_bias_rms_norm_kernel": "all_reduce",
    "void c10d::intra_node_comm::oneShotAllReduceKernel<8u, true>(x)": "all_reduce",
    "void tensorrt_llm::kernels::twoShotAllReduceKernel<__half, 8>(x)": "all_reduce",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<x>(y)": (
        "all_reduce"
    ),
    "void quickreduce::allreduce_prototype_twoshot<x>(y)": "all_reduce",
    "void aiter::cross_device_reduce_2stage_write_mode<opus::bf16, 8, false>(x)": "all_reduce",
    "void alltoall_on_stream_kernel<char>(x)": "all_to_all",
    "barrier_on_stream_kernel_threadgroup(int, int)": "barrier",
    "rdxn_float_sum_on_stream_kernel(int)": "all_reduce",
    "c10d::nvshmem_extension::allToAllV(void*, void*)": "all_to_all",
}

CALLS = {
    "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)": ("dispatch", "all_to_all"),
    "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(x)": ("combine", "all_to_all"),
    "void dpsk::ep::internode::dispatch_ll<true>(x)": ("dispatch_ll", "all_to_all"),
    "void deep_ep::internode_ll::combine<true>(x)": ("combine", "all_to_all"),
    "void primus_turbo::deep_ep::intranode::notify_dispatch<8>(x)": ("notify_dispatch", None),
    "void deep_ep::intranode::cached_notify_combine<8>(x)": ("cached_notify_combine", None),
    "void mori::moe::EpDispatchIntraNodeKernel<float>(x)": (
        "EpDispatchIntraNodeKernel",
        "all_to_all",
    ),
    "c10d::symmetric_memory::barrier_kernel(unsigned int**, int)": ("barrier", "barrier"),
    "c10d::nvshmem_extension::exchangeSplitAndOffset(long*)": ("exchangeSplitAndOffset", None),
}

UNKNOWN = [
    "void nvshmemi_transfer_kernel<int>(x)",
    "nvshmem_put_kernel",
    "userbuffers_fp16_sum_inplace_gpu_rw_ag(int)",
    "kuserbuffers_pushrecv(int)",
    "oneccl_pcie",
]

COMPUTE = [
    "triton_poi_fused_all_reduce_0",
    "triton_red_fused_add_all_gather_into_tensor_wait_tensor_3",
    "void flash_fwd_splitkv_mla_combine_kernel<x>(y)",
    "void cdpsk::ep::CUB_200400_SM_900::DeviceScanKernel<x>(y)",
    "void dpsk::ep::cuda::get_dispatch_layout<8>(x)",
    "void deep_ep::elastic::dispatch_copy_epilogue_impl<8>(x)",
    "void at::native::reduce_kernel<512, 1, vllm::cross_device_reduce_1stage<float, 8> >(x)",
    "void at::native::(anonymous namespace)::indexSelectLargeIndex<float>(x)",
    "void cub::DeviceReduceKernel<one_shot_all_reduce_kernel>(x)",
    "void at::native::_scatter_gather_elementwise_kernel<128, 4>(x)",
    "moe_align_block_size_kernel",
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int>(x)",
    "barrier_kernel",
    "",
]


with (Path(__file__).parent / "kernels" / "names.tsv").open() as _file:
    PUBLIC = list(csv.DictReader(_file, delimiter="\t"))


@pytest.mark.parametrize("row", PUBLIC, ids=[row["name"][:60] for row in PUBLIC])
def test_names_found_in_public(row: dict[str, str]) -> None:
    known = kernels.known(row["name"])
    assert (known is not None) == (row["kind"] == "communication")
    if known is not None:
        assert (known.op or known.executed or "") == row["op"]


@pytest.mark.parametrize(("name", "told"), NCCL.items())
def test_nccl_tells_what_ran_and_what_was_called_where_it_runs_nothing_else(
    name: str, told: tuple[str | None, str | None]
) -> None:
    """Its broadcasts and reduces also run all_gathers and reduce_scatters of uneven parts."""
    executed, dtype = told
    op = None if executed in ("broadcast", "reduce") else executed
    assert kernels.known(name) == Kernel(executed=executed, op=op, dtype=dtype, is_nccl=True)


@pytest.mark.parametrize(("name", "op"), ONE_OPERATION.items())
def test_kernels_that_serve_one_operation(name: str, op: str) -> None:
    known = kernels.known(name)
    assert known is not None
    assert (known.op, known.executed, known.call) == (op, op, None)


@pytest.mark.parametrize(("name", "told"), CALLS.items())
def test_kernels_of_a_protocol_are_named_by_their_call(
    name: str, told: tuple[str, str | None]
) -> None:
    assert kernels.known(name) == Kernel(call=told[0], op=told[1])


@pytest.mark.parametrize("name", UNKNOWN)
def test_kernels_that_communicate_but_do_not_say_what(name: str) -> None:
    assert kernels.known(name) == Kernel()


@pytest.mark.parametrize("name", COMPUTE)
def test_names_that_only_look_alike(name: str) -> None:
    assert not kernels.is_communication(name)


def test_what_the_arguments_of_a_template_tell() -> None:
    assert kernels.known(
        "void sglang::cross_device_reduce_1stage<__half, 8>(sglang::RankData*)"
    ) == (Kernel("all_reduce", "all_reduce", None, "float16", 8))
    assert kernels.known("void two_shot_all_reduce_kernel<float, 16, -1, false, false>(x)") == (
        Kernel("all_reduce", "all_reduce", None, "float32", None)
    )
    nvcc = "void two_shot_all_reduce_kernel<c10::BFloat16, (int)16, (int)8, (bool)1, (bool)0>(x)"
    assert kernels.known(nvcc) == Kernel("reduce_scatter", "reduce_scatter", None, "bfloat16", 8)


def test_of_the_real_traces_only_nccl_communicates(real_traces: Path) -> None:
    names = set()
    for file in sorted(real_traces.rglob("*.json.gz")):
        try:
            trace = json.loads(gzip.decompress(file.read_bytes()))
        except ValueError:  # one is malformed
            continue
        every = trace["traceEvents"]
        names |= {e["name"] for e in every if str(e.get("cat")).lower() == "kernel"}
    assert len(names) > 300
    for name in names:
        assert kernels.is_communication(name) == name.startswith("nccl"), name
