"""The categories of events: what is read, and what is left out."""

from __future__ import annotations

__all__ = ["ARROWS", "GPU", "KINDS", "LAUNCHES", "NEEDLESS", "ON_HOST", "OPERATORS", "READ"]

LAUNCHES = (
    "xpu_runtime",
    "xpu_driver",
    "privateuse1_runtime",
    "privateuse1_driver",
    "mtia_runtime",
    "mlu_runtime",
    "gcu_runtime",
    "gcu_driver",
)
"""Launches on accelerators other than CUDA's and ROCm's; kernels and copies have CUDA's."""

# As Kineto names them now, and as it did before 2022.
GPU: dict[str | None, str] = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "gpu_memcpy",
    "Memcpy": "gpu_memcpy",
    "gpu_memset": "gpu_memset",
    "Memset": "gpu_memset",
}
"""What runs on a GPU, whatever the file's age calls it."""

KINDS: dict[str | None, str] = {
    **dict.fromkeys(GPU, "gpu"),
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "Runtime": "launch",
    "cuda_sync": "synchronisation",
    **dict.fromkeys(LAUNCHES, "launch"),
    "cpu_op": "cpu_op",
    "Operator": "cpu_op",
    "user_annotation": "user_annotation",
}
"""What is read."""

READ = frozenset(KINDS)

OPERATORS = frozenset(category for category, kind in KINDS.items() if kind == "cpu_op")

ON_HOST = ("cpu_op", "user_annotation")
"""Kinds of events that may be communication on the host."""

NEEDLESS = frozenset(
    (
        "python_function",
        "Python function",
        "gpu_user_annotation",
        "overhead",
        "xpu_sync",
        "cuda_event",
        "cuda_profiler_range",
        "cpu_instant_event",
        "external_correlation",
        "mtia_insight",
        "mtia_counters",
        "glow_runtime",
        "Trace",
        "Spans",
    )
)
"""What is no work, or repeats other events, and is left out on purpose."""

ARROWS = ("ac2g", "async_cpu_to_gpu", "fwdbwd")
"""What links events."""
