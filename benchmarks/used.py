"""What a command takes of processor and memory, with all processes that it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Used", "used"]

ROOT = Path(__file__).parent.parent
_CODE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
its = resource.getrusage(resource.RUSAGE_CHILDREN)
print("\\n", its.ru_utime + its.ru_stime, its.ru_maxrss)
"""


class Used(NamedTuple):
    """Processor seconds, the memory of the largest process, and what the command printed."""

    cpu_s: float
    peak_mb: float
    printed: str


def used(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Used:
    """Run a command here in the project's folder. Raises CalledProcessError where it fails."""
    done = subprocess.run(
        [sys.executable, "-c", _CODE, *command],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=True,
    )
    printed, _, numbers = done.stdout.rstrip().rpartition("\n")
    cpu_s, kilobytes = numbers.split()
    return Used(float(cpu_s), int(kilobytes) * 1024 / 1e6, printed)
