"""What was freed given back to the system, where glibc would keep it."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

__all__ = ["give_back", "keep_little"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # as malloc.h numbers them
_ARRAY_BYTES = 1 << 22  # from here on numpy asks for huge pages: new memory costs little
_KEPT_BYTES = 1 << 26  # at the heap's end: what the default comes to


def give_back() -> None:
    """Give the system what lies free between what is in use."""
    if libc := _glibc():
        libc.malloc_trim(0)


def keep_little() -> None:
    """From now on give each large array back when nobody needs it any longer.

    The heap, which else takes in all below 32 MB once one of them was freed, would hold many
    times those in use.
    """
    if libc := _glibc():
        libc.mallopt(_MMAP_THRESHOLD, _ARRAY_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def _glibc() -> Any:
    libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
    return libc if hasattr(libc, "malloc_trim") else None
