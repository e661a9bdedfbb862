"""Ranks of a recording that are forked where torch is imported already: see ``rank_server``."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Pipe
from pathlib import Path
from typing import Any

from commtrace.record import processes
from commtrace.record.folder import create

HERE = Path(__file__).parent


@contextmanager
def rank_server() -> Iterator[socket.socket]:
    """The socket of a server."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-u", HERE / "rank_server.py", str(theirs.fileno())],
            env={**os.environ, "PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"},
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    with process, ours:
        yield ours
        ours.shutdown(socket.SHUT_RDWR)


class _Forked:
    """A rank of the server's, as ``subprocess.Popen`` would have it."""

    def __init__(self, server: socket.socket, asked: Mapping[str, Any], *files: Any) -> None:
        self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            given = [file.fileno() for file in (*files, theirs)]
            socket.send_fds(server, [json.dumps(asked).encode()], given)
        self.pid = int(self._status.recv(99))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("rank", timeout or 0)
            self.returncode = int(self._status.recv(99))
            self._status.close()
        return self.returncode


def start(
    server: socket.socket,
    number: int,
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
) -> processes._Rank:
    """In place of ``processes._start``."""
    python, unbuffered, m, *words = command
    assert (python, unbuffered, m) == (sys.executable, "-u", "-m")
    asked = {"command": words, "environment": {**environment}, "folder": str(Path.cwd())}
    ours, theirs = Pipe()
    with theirs, create(log) as output:
        rank: Any = _Forked(server, asked, output, theirs)
    return processes._Rank(number, rank, ours)
