"""What GPUs run: kernels, and communication with the names that PyTorch gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = [
    "ADAM",
    "ALL_GATHER",
    "ALL_GATHER_LIST",
    "ALL_REDUCE",
    "ALL_TO_ALL",
    "ATTENTION",
    "BROADCAST",
    "BYTES",
    "ELEMENTWISE",
    "LINEAR",
    "LOSS",
    "MATMUL",
    "REDUCE_SCATTER",
    "SEND_RECV",
    "Kernel",
    "Operation",
    "nccl_kernel",
]

BYTES = {"BFloat16": 2, "Float": 4, "Long": 8}
SHORT = {"BFloat16": "bf16", "Float": "f32", "Long": "i64"}
ADD = "at::native::CUDAFunctor_add<c10::BFloat16>"
ARRAYS = "std::array<char*, 3ul>"
ADAM_LISTS = "at::native::(anonymous namespace)::TensorListMetadata<4>"


class Kernel(NamedTuple):
    """A kind of kernel, and the operator that launches it."""

    operator: str
    name: str


MATMUL = Kernel("aten::mm", "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT")
LINEAR = MATMUL._replace(operator="aten::linear")
ELEMENTWISE = Kernel(
    "aten::add",
    f"void at::native::vectorized_elementwise_kernel<8, {ADD}, {ARRAYS}>(int, {ADD}, {ARRAYS})",
)
LOSS = ELEMENTWISE._replace(operator="aten::nll_loss")
ATTENTION = Kernel(
    "aten::_flash_attention_forward",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
    "cutlass::bfloat16_t> >(Flash_fwd_params)",
)
ADAM = Kernel(
    "aten::_fused_adamw_",
    f"void at::native::multi_tensor_apply_kernel<{ADAM_LISTS}, FusedAdamMathFunctor<float, 4> >",
)


class Operation(NamedTuple):
    """A collective of torch.distributed, as the profiler writes it down.

    ``wire_share`` is how many times its full array crosses each rank's link.
    """

    recorded: str
    kernel: str
    annotation: str
    operator: str
    wire_share: Callable[[int], float]


def _all_but_one(ranks: int) -> float:
    return (ranks - 1) / ranks


ALL_REDUCE = Operation(
    "allreduce",
    "AllReduce_Sum_{type}_RING_LL",
    "nccl:all_reduce",
    "c10d::allreduce_",
    lambda ranks: 2 * _all_but_one(ranks),
)
ALL_GATHER = Operation(
    "_allgather_base",
    "AllGather_RING_LL",
    "nccl:_all_gather_base",
    "c10d::_allgather_base_",
    _all_but_one,
)
ALL_GATHER_LIST = Operation(
    "allgather", "AllGather_RING_LL", "nccl:all_gather", "c10d::allgather_", _all_but_one
)
REDUCE_SCATTER = Operation(
    "_reduce_scatter_base",
    "ReduceScatter_Sum_{type}_RING_LL",
    "nccl:_reduce_scatter_base",
    "c10d::_reduce_scatter_base_",
    _all_but_one,
)
BROADCAST = Operation(
    "broadcast", "Broadcast_RING_LL", "nccl:broadcast", "c10d::broadcast_", lambda _: 1.0
)
ALL_TO_ALL = Operation(
    "all_to_allv", "SendRecv", "nccl:all_to_all", "c10d::alltoall_base_", _all_but_one
)
SEND_RECV = "SendRecv"


def nccl_kernel(kernel: str, dtype: str = "BFloat16") -> str:
    """The name of NCCL's kernel."""
    return f"ncclDevKernel_{kernel.format(type=SHORT[dtype])}(ncclDevKernelArgsStorage<4096ul>)"
