"""Recordings of programs, kept in a folder that is filled up with what it lacks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.programs.truth import Program

__all__ = ["is_complete", "recorded"]

ROOT = Path(__file__).parent.parent.parent


def is_complete(folder: Path) -> bool:
    """Whether there is a recording that went well."""
    manifest = folder / "manifest.json"
    return manifest.exists() and json.loads(manifest.read_text("utf-8"))["status"] == "complete"


def recorded(program: Program, fault: str, folder: Path, timeout_s: float) -> str:
    """Record it as a user does, with no option but the number of ranks; why not, if it failed."""
    shutil.rmtree(folder, ignore_errors=True)  # what is left of one that failed
    command = [
        *(sys.executable, "-m", "commtrace", "record", "-n", str(program.world_size)),
        *("-o", str(folder.resolve()), "--", str(program.path), "--fault", fault),
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            _, said = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return f"more than {timeout_s:.0f} s"
        finally:
            child.terminate()  # which ends its ranks, too
    if not child.returncode:
        return ""
    lines = [line for line in said.splitlines() if line.startswith("commtrace:")]
    return (lines or [f"exit status {child.returncode}"])[-1][:160]
