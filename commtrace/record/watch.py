"""A thread in each rank that sees when it hangs, and does what the launcher orders."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist

from commtrace.record import culprit as blame
from commtrace.record import flight
from commtrace.record.profile import whereabouts
from commtrace.record.report import Report

__all__ = ["watch"]

_LOOK_S = 5.0
"""How often to look. It costs a millisecond, and not that of the thread that trains."""

_SAVE_S = 20.0
"""How long a rank that ends itself may take to save its trace."""


def watch(report: Report, timeout_s: float, *, request: Callable[[], object] | None = None) -> None:
    """Report the operation that this rank has waited for ``timeout_s``; obey the launcher.

    Where no launcher of ours hears the report the rank says so itself, and ends.
    Once the rank has its trace it may wait as long as torch lets it.

    ``request`` is called when it orders a window.
    """
    thread = threading.Thread(
        target=_watch, args=(report, timeout_s, request), name="commtrace-watch", daemon=True
    )
    thread.start()


def _watch(report: Report, timeout_s: float, request: Callable[[], object] | None) -> None:
    patience_s = min(_LOOK_S, timeout_s / 4)
    reported = False
    with contextlib.suppress(EOFError):
        while True:
            order = report.order(patience_s)
            if order == "state":
                report.at("state", flight.state())
            elif order == "leave":
                _cut_connections()
            elif order == "window" and request:
                request()
            elif reported or report.has_recorded:
                continue
            elif (stuck := flight.waiting()) and stuck.waited_s() > timeout_s:
                reported = True
                stuck = flight.waiting(with_line=True) or stuck
                if report.is_heard:
                    report.at("stuck", stuck.to_dict())
                else:
                    report.hung = blame.hang(stuck.to_dict(), stuck.waited_s(), {})
                    _end(report.hung)


def _end(what: str) -> None:
    """Do what a launcher of ours would: say what happened, and end this rank, its trace saved."""
    print(f"commtrace: rank {whereabouts()['rank']}: {what}", file=sys.stderr, flush=True)  # noqa: T201
    os.kill(os.getpid(), signal.SIGTERM)
    _cut_connections()
    time.sleep(_SAVE_S)
    os._exit(1)


def _cut_connections() -> None:
    """Have the main thread return from an operation that nobody else will enter.

    gloo has no other way; NCCL can abort.
    """
    if dist.is_initialized() and "nccl" in dist.get_backend():
        with contextlib.suppress(RuntimeError):
            dist.distributed_c10d._abort_process_group()
    for descriptor in Path("/proc/self/fd").iterdir():
        # Whatever is no socket, or no connection, is none of ours to close.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(descriptor.name))) as s:
            if s.family in (socket.AF_INET, socket.AF_INET6):
                s.getpeername()  # gloo would abort if it could listen no more
                s.shutdown(socket.SHUT_RDWR)
