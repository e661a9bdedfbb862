"""Ports that nobody else takes while a test wants to listen there."""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import suppress

# Below those that the system hands out: nobody else takes one in between.
_PORTS = itertools.count(20_000 + os.getpid() % 10_000)


def free_port() -> int:
    """The next that nobody listens at."""
    for port in _PORTS:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")
