"""What of a recording's extras the user leaves out."""

from __future__ import annotations

import os

from commtrace.errors import UsageError

__all__ = ["NAMES", "VARIABLE", "check", "wanted"]

VARIABLE = "COMMTRACE_WITHOUT"
"""The environment variable with their names."""
NAMES = ("garbage-collection", "checkpoint", "cuda-sync", "lines", "machine", "wait")


def check() -> None:
    """Raises UsageError where the user leaves out what is not there."""
    if unknown := [name for name in _without() if name not in NAMES]:
        raise UsageError(f"{VARIABLE}={unknown[0]}: no such extra; leave out {', '.join(NAMES)}")


def wanted(name: str) -> bool:
    """Whether the user leaves it in."""
    return name not in _without()


def _without() -> list[str]:
    return os.environ.get(VARIABLE, "").replace(",", " ").split()
