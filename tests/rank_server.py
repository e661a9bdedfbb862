"""A process that has imported torch, and forks a rank of it for whoever asks at its socket.

Importing what a recording needs takes each rank longer than all that most tests record.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import select
import socket
import sys
from typing import Any

import torch._inductor.config
import torch.distributed
import torch.profiler  # noqa: F401

from commtrace.record.report import LAUNCHER, REPORT_FD


def serve(server: socket.socket) -> str:
    """In each rank: the module that it shall run. The server itself ends with its socket."""
    while True:
        request, files, *_ = socket.recv_fds(server, 1 << 20, 3)
        reap(os.WNOHANG if request else 0)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            server.close()
            return supervise(json.loads(request), *files)
        for file in files:
            os.close(file)


def reap(options: int) -> None:
    """Have done with the ranks that have ended; or wait until all have."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def supervise(asked: dict[str, Any], log: int, report: int, status: int) -> str:
    """Tell a rank's number and how it ends; end it when nobody listens any more."""
    rank = os.fork()
    if rank == 0:
        return become(asked, log, report, status)
    os.close(log)
    os.close(report)
    # At once: whoever ends first is to blame for how the others end.
    select.select([status, os.pidfd_open(rank)], [], [])
    number, how = os.waitpid(rank, os.WNOHANG)
    if number:
        os.write(status, str(os.waitstatus_to_exitcode(how)).encode())
    os._exit(0)  # the rank ends with its parent


def become(asked: dict[str, Any], log: int, report: int, status: int) -> str:
    """Be as a new process would be that was given the command."""
    os.setsid()
    os.write(status, str(os.getpid()).encode())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.set_inheritable(report, True)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.environ.update({REPORT_FD: str(report), LAUNCHER: str(os.getppid())})
    os.chdir(asked["folder"])
    module, *sys.argv[1:] = asked["command"]
    sys.path[0] = asked["folder"]
    for file in (log, status):
        os.close(file)
    return str(module)


if __name__ == "__main__":
    gc.freeze()  # else each rank would copy all of it, to look for garbage when it ends
    module = serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
