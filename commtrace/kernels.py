"""Which GPU kernels communicate, and what their names tell.

NCCL's and RCCL's; and those of the libraries beside them, which many tools count as
compute: symmetric memory, custom all_reduce of inference servers, expert parallelism,
NVSHMEM. Users add their own, see ``config``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from commtrace.comms import canonical_dtype, canonical_operation
from commtrace.config import kernel_patterns

__all__ = ["MATRIX", "PRODUCT", "Kernel", "is_communication", "is_launch", "known"]

MATRIX = r"(?<!fb)gemm|conv(?!ert)|fprop|dgrad|wgrad|attention|attn|flash|fmha|nvjet"
"""What is in the names of kernels that multiply matrices."""
PRODUCT = r"aten::(?:mm|addmm|bmm|baddbmm|linear|conv|einsum|_?scaled_dot)"
"""How the names of operators begin that do; and of those that call them, ``matmul``."""
_LAUNCH = re.compile(r"(?:cuda|cu|hip)\w*Launch")


def is_launch(call: str) -> bool:
    """Whether a call of CUDA or HIP launches kernels."""
    return _LAUNCH.match(call) is not None


class Kernel(NamedTuple):
    """What a communication kernel's name tells; None where it is silent.

    ``executed`` is the operation that it runs. ``op`` is the operation that was called,
    where such a kernel serves but one: NCCL's of broadcasts and reduces also run all_gathers and
    reduce_scatters of uneven parts. ``call`` is the library's own name
    for what the kernel does, where no operator describes that better: it is one part of a
    protocol, or does not do what its operation is made of elsewhere.
    """

    executed: str | None = None
    op: str | None = None
    call: str | None = None
    dtype: str | None = None
    group_size: int | None = None
    is_nccl: bool = False


# Traces of CPUs name no kernels: all of these are compiled when they are first needed.

# A name without what it returns and without its arguments: these name types, not kernels.
_OWN_NAME = r"(?:void |static |__global__ )*((?:(?:\w+|\(anonymous namespace\)|<unnamed>)::)*\w+)"
_UNNAMED = r"(?:\(anonymous namespace\)|<unnamed>)::"

# NCCL's, and those of its kin: RCCL, also with the algorithms of MSCCL, and ctran.
_NCCL = r"(?:nccl|rccl|msccl)\w*Kernel\w*"
_NCCL_OPERATION = (
    r"(?:\w+Kernel_?|nccl)(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|All[tT]oAll)V?"
    r"(?:(?:Ring|Tree|CollNet)\w*Kernel_|Ctran|(?![A-Za-z]))"
)
_SERVES_ONE = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
_NCCL_DTYPE = (
    r"_(?i:Sum|Prod|Min|Max|Avg|MinMax|PreMulSum|SumPostDiv)_"
    r"(hip_bfloat16|__nv_bfloat16|\w+?)(?:_|\(|$)"
)

_ANY = r"(?:\w+::)*"
_HCCL = r"(?i:hcom|hccl)_?"
_EXPERTS = rf"{_ANY}(?:deep_ep|dpsk::ep|uccl)::{_ANY}"


def _word(first: str, rest: str) -> str:
    """A kernel whose own name holds an operation: ``one_shot_all_reduce``, ``ddaAllReduce``."""
    return rf"{_ANY}\w*(?:(?<![A-Za-z]){first}|{first.capitalize()})_?{rest}\w*"


# What stays on its GPU, whatever its name holds: compilers name kernels after the operations
# that they were fused with, and a block of threads has an all_reduce of its own.
_LOCAL = (
    rf"triton_\w*|(?:at|cub|thrust|cutlass)::[\w:]*|{_ANY}\w*?(?i:block|warp)_?[aA]ll_?[rR]educe\w*"
)

# What names tell, in the order of trust: a pattern's group "call" is the library's name for a
# part of a protocol, of which no operator says more; other names are of whole operations.
_KNOWN = (
    # DeepEP and UCCL: tokens go to their experts' ranks and back, as many as routing says;
    # their epilogues and layouts are local
    (rf"{_EXPERTS}(?!\w*epilogue)(?P<call>(?:dispatch|combine)\w*)", "all_to_all"),
    (rf"{_EXPERTS}(?P<call>(?:cached_)?notify\w*)", None),
    (rf"{_EXPERTS}(?P<call>barrier)", "barrier"),
    (rf"{_ANY}hybrid_ep::(?P<call>(?:dispatch|combine)\w*)", "all_to_all"),
    # mori, TensorRT-LLM and FlashInfer, pplx
    (rf"{_ANY}(?P<call>Ep(?:Dispatch|Combine)\w*Kernel)\w*", "all_to_all"),
    (rf"{_ANY}(?P<call>moeA2A(?:Dispatch|Combine)|moeAllToAll)Kernel", "all_to_all"),
    (rf"{_ANY}(?P<call>a2a_(?:dispatch|combine)_(?:send|recv))_kernel", "all_to_all"),
    # Signals and splits around the copies and kernels of an operation
    (rf"{_ANY}symmetric_memory::(?P<call>barrier)_kernel", "barrier"),
    (rf"{_ANY}symmetric_memory::(?P<call>(?:put|wait)_signal)_kernel", None),
    (rf"{_ANY}nvshmem_extension::(?P<call>exchangeSplitAndOffset\w*)", None),
    # vLLM, SGLang, AITER: two of these are an all_reduce without saying so
    (rf"{_ANY}(?:cross_device_reduce|reduce_scatter_cross_device)_\w+", "all_reduce"),
    (rf"{_ANY}\w*reduce_rms_kernel_lamport\w*", "all_reduce"),
    (rf"{_ANY}_?multimem_one_shot_reduce_\w*", "reduce"),
    # Whoever else says so: PyTorch's symmetric memory, TensorRT-LLM, FlashInfer, FBGEMM, …
    (_word("all", "[rR]educe"), "all_reduce"),
    (_word("reduce", "[sS]catter"), "reduce_scatter"),
    (_word("all", "[gG]ather"), "all_gather"),
    (_word("all", "[tT]o_?[aA]ll"), "all_to_all"),
    # The tail of a two-shot all_reduce: it awaits the others' parts, and normalises
    (rf"{_ANY}(?P<call>(?!\w*init)\w*[lL]amport\w*)", None),
    # Huawei's HCCL, and Habana's of the same name
    (rf"{_HCCL}broadcast\w*", "broadcast"),
    (rf"{_HCCL}reduce(?:_\w*)?", "reduce"),
    (rf"{_HCCL}send\w*", "send"),
    (rf"{_HCCL}receive\w*", "recv"),
    # NVSHMEM, rocSHMEM: collectives that the host enqueues
    (r"(?:\w+_)?(?:barrier|sync)(?:_all)?_on_stream_kernel\w*", "barrier"),
    (r"(?:\w+_)?broadcast\w*_on_stream_kernel\w*", "broadcast"),
    (r"(?:\w+_)?(?:rdxn|reduce)\w*_on_stream_kernel\w*", "all_reduce"),
    (r"(?:\w+_)?f?collect\w*_on_stream_kernel\w*", "all_gather"),
    # These communicate, and do not say what
    (rf"{_ANY}\w*(?:nvshmem|rocshmem)\w*", None),
    (rf"{_ANY}(?:nvshmem|nccl)_extension::\w+", None),
    (rf"{_ANY}mscclpp::{_ANY}executionKernel", None),
    (r"k?userbuffers_\w+", None),  # Transformer Engine
    (rf"oneccl_\w+|{_ANY}(?:one)?ccl::{_ANY}\w+|nccl_ep_\w+|{_HCCL}\w*", None),
)

_NUMBER = r"(?:\(\w[\w ]*\))?"  # nvcc writes (int)8 for 8
_OF_RANKS = rf"cross_device_reduce_[12]stage\w*<([\w:]+), {_NUMBER}(\d+)"
_SHOTS = (
    r"(?:one|two)_shot_all_reduce_kernel\w*"
    rf"<([\w:]+), {_NUMBER}\d+, {_NUMBER}(-?\d+)(?:, {_NUMBER}(true|1))?"
)


def is_communication(name: str) -> bool:
    """Whether a GPU kernel communicates, by its name. Raises UsageError as ``config`` does."""
    return known(name) is not None


@lru_cache(maxsize=65536)
def known(name: str) -> Kernel | None:
    """What the name of a communication kernel tells; None if it is not known as one.

    ``SendRecv`` and RCCL's ``Generic`` run several operations, so they tell none.
    Raises UsageError where the user's own patterns cannot be used.

    >>> known("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)").executed
    'all_reduce'
    >>> known("void vllm::cross_device_reduce_1stage<float, 8>(int)")[:5]
    ('all_reduce', 'all_reduce', None, 'float32', 8)
    >>> known("void at::native::reduce_kernel<512, 1>(int)") is None
    True
    """
    own = re.match(_OWN_NAME, name)
    bare = re.sub(_UNNAMED, "", own[1]) if own else ""
    if re.fullmatch(_NCCL, bare):
        return _nccl(bare)
    for pattern, op in kernel_patterns():
        if pattern.search(name):
            return Kernel(executed=op, op=op)
    if re.fullmatch(_LOCAL, bare):
        return None
    for pattern, op in _compiled():
        if match := pattern.fullmatch(bare):
            if "call" in pattern.groupindex:
                return Kernel(op=op, call=match["call"])
            return _templated(Kernel(executed=op, op=op), name)
    return None


@lru_cache(maxsize=1)
def _compiled() -> tuple[tuple[re.Pattern[str], str | None], ...]:
    return tuple((re.compile(expression), op) for expression, op in _KNOWN)


def _nccl(name: str) -> Kernel:
    operation, dtype = re.match(_NCCL_OPERATION, name), re.search(_NCCL_DTYPE, name)
    executed = canonical_operation(operation[1]) if operation else None
    return Kernel(
        executed=executed,
        op=executed if executed in _SERVES_ONE else None,
        dtype=canonical_dtype(dtype[1]) if dtype else None,
        is_nccl=True,
    )


def _templated(kernel: Kernel, name: str) -> Kernel:
    """Add what the arguments of a template tell, where they are known."""
    if match := re.search(_OF_RANKS, name):
        return kernel._replace(dtype=canonical_dtype(match[1]), group_size=int(match[2]))
    if match := re.search(_SHOTS, name):
        size = int(match[2])
        op = "reduce_scatter" if match[3] else kernel.op
        return kernel._replace(
            executed=op,
            op=op,
            dtype=canonical_dtype(match[1]),
            group_size=size if size > 0 else None,
        )
    return kernel
