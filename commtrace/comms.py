"""How communication is spelled, and what each operation moves.

The only module that knows the names that PyTorch's layers, and the libraries beside
them, give to operations and types, and the factors of bus bandwidth. The names of GPU
kernels are in ``kernels``.
"""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = [
    "AUTOGRAD",
    "DDP_FORWARD",
    "EVEN",
    "FROM_ROOT",
    "OPERATIONS",
    "OPTIMIZER_STEP",
    "POINT_TO_POINT",
    "STEP_PREFIX",
    "SYNCHRONISING",
    "TO_ROOT",
    "WAIT",
    "bus_factor",
    "canonical_dtype",
    "canonical_operation",
    "element_bytes",
    "full_size_bytes",
    "is_communication_annotation",
    "is_communication_call",
    "is_floating",
    "is_message",
    "is_update",
    "members",
]

WAIT = "commtrace::wait"
"""The recorder's label for a wait that the program calls."""
DDP_FORWARD = "DistributedDataParallel.forward"
"""What DDP calls its module's forward pass in a trace."""
AUTOGRAD = "autograd::engine::evaluate_function"
"""What torch calls each operator of backward in a trace of a CPU, before its own name."""
OPTIMIZER_STEP = "Optimizer.step#"
"""What torch's optimizers call their steps in a trace, before their own name."""

OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "send",
    "recv",
    "barrier",
)
POINT_TO_POINT = ("send", "recv")

SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Operations in which every rank waits for every other."""

EVEN = ("all_reduce", "all_gather", "reduce_scatter")
"""Of these those in which each rank moves as many bytes: no busy one bounds the others."""

FROM_ROOT = ("broadcast", "scatter")
TO_ROOT = ("reduce", "gather")
"""Operations in which all others wait for the root, or it for them."""

_BY_LETTERS = {name.replace("_", ""): name for name in OPERATIONS}
_BY_LETTERS |= {
    "alltoallv": "all_to_all",
    "sparseallreduce": "all_reduce",
    "recvanysource": "recv",
    "monitoredbarrier": "barrier",
}
_BY_LETTERS |= {
    # symm_mem's fusions: the communication of a matmul's input, or of its result
    "fusedallgathermatmul": "all_gather",
    "fusedallgatherscaledmatmul": "all_gather",
    "fusedmatmulreducescatter": "reduce_scatter",
    "fusedscaledmatmulreducescatter": "reduce_scatter",
}
_PREFIX = re.compile(
    r"^(?:nccl|gloo|mpi|ucc|xccl|hccl|c10d|_?c10d_functional)::?"
    r"|^(?:symm_mem|_C_custom_ar|vllm|sgl_kernel|sglang)::_?"
    r"(?:low_contention_|multimem_|one_shot_|two_shot_|nvshmem_|nccl_|inplace_|outplace_)*"
)
_SUFFIX = re.compile(
    r"_?(?:oop|base|coalesced|into_tensor|tensor|single|out|inplace|sparse|any_source"
    r"|copy|vdev|2d|offset)$"
)

_TYPES = {
    "float64": ("double", "f64", "Double"),
    "float32": ("float", "f32", "Float"),
    "float16": ("half", "f16", "Half", "c10::Half", "__half"),
    "bfloat16": ("bf16", "BFloat16", "c10::BFloat16", "__nv_bfloat16", "hip_bfloat16"),
    "float8_e4m3fn": ("f8e4m3", "Float8_e4m3fn", "c10::Float8_e4m3fn"),
    "float8_e5m2": ("f8e5m2", "Float8_e5m2", "c10::Float8_e5m2"),
    "float8_e4m3fnuz": ("Float8_e4m3fnuz", "c10::Float8_e4m3fnuz"),
    "float8_e5m2fnuz": ("Float8_e5m2fnuz", "c10::Float8_e5m2fnuz"),
    "int64": ("long", "long int", "i64", "int64_t", "Long"),
    "int32": ("int", "i32", "int32_t", "Int"),
    "int16": ("short", "short int", "Short"),
    "int8": ("signed char", "i8", "int8_t", "Char"),
    "uint64": ("u64", "uint64_t", "unsigned long", "UInt64"),
    "uint32": ("u32", "uint32_t", "unsigned int", "UInt32"),
    "uint16": ("u16", "uint16_t", "unsigned short", "UInt16"),
    "uint8": ("unsigned char", "u8", "uint8_t", "Byte"),
    "bool": ("Bool",),
    "complex64": ("c10::complex<float>", "ComplexFloat"),
    "complex128": ("c10::complex<double>", "ComplexDouble"),
}
_DTYPES = {name: dtype for dtype, names in _TYPES.items() for name in (dtype, *names)}
_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
}

_CALL_PREFIX = (
    r"(?:c10d::|_?c10d_functional::|record_param_comms"
    r"|symm_mem::|_C_custom_ar::|deep_ep::|dpsk::ep::|nvshmem"
    r"|sgl_kernel::all_reduce|sglang::(?:in|out)place_all_reduce"
    r"|vllm::(?:all_reduce|all_gather|reduce_scatter))"
)
STEP_PREFIX = "ProfilerStep#"
"""How the profiler names the range of a step: an annotation, before torch 1.11 an operator."""

_CALL = re.compile(rf"{_CALL_PREFIX}(?<!record_param_comms)|record_param_comms$")
_ANNOTATION = re.compile(r"^(?:nccl|rccl|gloo|xccl|hccl):")


@lru_cache(maxsize=4096)
def canonical_operation(name: str) -> str | None:
    """The operation behind any layer's name for it, or None if it is none.

    >>> canonical_operation("c10d::_allgather_base_"), canonical_operation("nccl:all_to_all")
    ('all_gather', 'all_to_all')
    >>> canonical_operation("reduce_scatter_tensor_coalesced"), canonical_operation("wait")
    ('reduce_scatter', None)
    """
    bare = _PREFIX.sub("", name.strip()).partition(" ")[0].strip("_").lower()
    while (shorter := _SUFFIX.sub("", bare).strip("_")) != bare:
        bare = shorter
    return _BY_LETTERS.get(bare.replace("_", ""))


def canonical_dtype(name: str) -> str | None:
    """Torch's name for a type as c10, C++ or NCCL spell it; None if unknown.

    >>> canonical_dtype("BFloat16"), canonical_dtype("long int"), canonical_dtype("f32")
    ('bfloat16', 'int64', 'float32')
    """
    return _DTYPES.get(name.strip())


def element_bytes(dtype: str) -> int:
    """Bytes of one element of a canonical dtype. KeyError for any other name."""
    return _BYTES[dtype]


def is_floating(dtype: str) -> bool:
    """Whether a canonical dtype is of floating-point numbers.

    >>> is_floating("bfloat16"), is_floating("int64")
    (True, False)
    """
    return "float" in dtype


def is_message(name: str) -> bool:
    """Whether a kernel, or an operator, sends a message or receives one.

    >>> is_message("ncclDevKernel_SendRecv(ncclDevKernelArgs)"), is_message("c10d::recv_")
    (True, True)
    """
    of_nccl = name.startswith("nccl") and "SendRecv" in name
    return of_nccl or name.startswith(("c10d::send", "c10d::recv"))


def is_update(label: str) -> bool:
    """Whether that labels a step of an optimizer."""
    return label.startswith(OPTIMIZER_STEP)


@lru_cache(maxsize=65536)
def is_communication_call(name: str) -> bool:
    """Whether a CPU operator enqueues communication or waits for it."""
    return _CALL.match(name) is not None


def is_communication_annotation(name: str) -> bool:
    """Whether a ``user_annotation`` is a backend's own, around an operation it runs."""
    return _ANNOTATION.match(name) is not None


def full_size_bytes(
    op: str, in_bytes: int | None, out_bytes: int | None, group_size: int | None
) -> int | None:
    """S, the size by which nccl-tests measures an operation, from one rank's in and out.

    The larger of input and output (all_gather: output; reduce_scatter: input); for gather
    and scatter the group's size times the per-rank part. None if unknown.
    barrier has no size.
    """
    if op == "barrier":
        return None
    if op in ("gather", "scatter"):
        part = in_bytes if op == "gather" else out_bytes
        return part * group_size if part is not None and group_size is not None else None
    if op == "all_gather":
        return out_bytes
    if op == "reduce_scatter":
        return in_bytes
    known = [size for size in (in_bytes, out_bytes) if size is not None]
    return max(known) if known else None


def bus_factor(op: str, group_size: int) -> float | None:
    """Busbw / algbw as nccl-tests defines it (its PERFORMANCE.md); None for barrier.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if op == "barrier" or op not in OPERATIONS:
        return None
    if op == "all_reduce":
        return 2 * (group_size - 1) / group_size
    if op in ("broadcast", "reduce", "send", "recv"):
        return 1.0
    return (group_size - 1) / group_size


def members(communicator: str | None) -> tuple[int, ...]:
    """The ranks that a communicator's identity (``matching.communicators``) lists, in its order.

    None are known of an operation without one, as in a CUDA graph.

    >>> members("0,4,8#dp"), members("#dp"), members(None)
    ((0, 4, 8), (), ())
    """
    listed = (communicator or "").partition("#")[0]
    return tuple(map(int, listed.split(","))) if listed else ()
