"""What a terminal shows while one waits."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

TRACES = Path(__file__).parent.parent / "traces"


def on_a_terminal(arguments: list[str]) -> str:
    """What the command line writes to a terminal that is its standard error."""
    ours, its = pty.openpty()
    try:
        done = subprocess.Popen(
            [sys.executable, "-m", "commtrace", *arguments], stdout=subprocess.DEVNULL, stderr=its
        )
        os.close(its)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
        assert done.wait() == 0
    finally:
        os.close(ours)
    return shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # so Linux says that the other end is closed
        return b""


def test_who_waits_sees_what_is_read_and_asked() -> None:
    shown = on_a_terminal(["analyze", str(TRACES / "straggler" / "gloo-4"), "--no-cache"])
    assert "reading" in shown
    assert "asking rules" in shown
