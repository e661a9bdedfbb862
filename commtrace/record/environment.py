"""What recorded ranks have in their environment, but for what the user has set."""

from __future__ import annotations

from importlib.util import find_spec

from commtrace.errors import UsageError

__all__ = ["cuda_devices", "preset"]

# Operations that it keeps; gloo's is off unless this is set.
_FLIGHT_RECORDER = {"TORCH_FR_BUFFER_SIZE": "20000"}
# Of what a profiler keeps beside each tensor glibc sets freed pieces aside. In the gaps between
# them the next tensor of that size finds no room, so that each step's memory is new.
_ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=1"}
# Where there is no GPU a torch that is built for some reports that as an error of each profile.
_QUIET = {"KINETO_LOG_LEVEL": "5"}


def preset() -> dict[str, str]:
    """The flight recorder; without a GPU also memory that recording breaks up less, and quiet."""
    return _FLIGHT_RECORDER | ({} if cuda_devices() else _ALLOCATOR | _QUIET)


def cuda_devices() -> int:
    """How many CUDA devices NCCL could use. Raises UsageError without PyTorch."""
    if find_spec("torch") is None:
        raise UsageError("recording needs PyTorch: pip install torch")
    try:
        import torch
    except ImportError as error:  # as where a library of its is missing
        raise UsageError(f"PyTorch cannot be imported: {error}; reinstall it") from None

    usable = torch.cuda.is_available() and torch.distributed.is_nccl_available()
    return torch.cuda.device_count() if usable else 0
