"""Where the ranks meet: a store on the first node, through which launchers talk, too."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from commtrace.errors import RecordError, UsageError
from commtrace.record.culprit import Failure

__all__ = ["Nodes", "Place", "meet"]

_LOOPBACK = "127.0.0.1"
_SETTLE_S = 1.0
"""How long each node may take to tell its failure before all agree which came first."""
_POLL_S = 0.1
_TRY_S = 2.0
_FAREWELL_S = 30.0
"""How long the first node keeps the store after a failure."""
_BEAT_S = 5.0
_SILENCE_S = 60.0
"""A node that has shown no sign of life for so long is gone."""


@dataclass(frozen=True)
class Place:
    """Which of several nodes this is, and where all meet; alone by default."""

    node: int = 0
    nodes: int = 1
    host: str = _LOOPBACK
    port: int = 0

    @classmethod
    def of(cls, nodes: int, node: int, endpoint: str | None) -> Place:
        """From what the user gave. Raises UsageError."""
        if nodes == 1 and endpoint is None and node == 0:
            return cls()
        if endpoint is None:
            raise UsageError("--nnodes: several nodes need a place to meet; give --rdzv-endpoint")
        if not 0 <= node < nodes:
            raise UsageError(f"--node-rank {node}: from 0 to {nodes - 1}, with --nnodes {nodes}")
        host, colon, port = endpoint.rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 2**16):
            raise UsageError(f"--rdzv-endpoint {endpoint}: write it as HOST:PORT")
        return cls(node, nodes, host.strip("[]"), int(port))

    def subfolder(self, name: str) -> str:
        """Where this node's files go by default: a folder of its own where there are several."""
        return f"{name}/node{self.node}" if self.nodes > 1 else name


class Nodes:
    """The launchers of all nodes. ``first_rank`` and ``world_size`` are known once all are here.

    Raises RecordError where one does not come in time.
    """

    def __init__(self, place: Place, port: int, store: Any, ranks: int, timeout_s: float) -> None:
        self.place, self.port = place, port
        self._store = store
        self._put("here", {"host": socket.gethostname(), "ranks": ranks})
        others = [self._get(node, "here", timeout_s) for node in range(place.nodes)]
        self.hosts = list(dict.fromkeys(other["host"] for other in others))
        self._others = others
        self.first_rank = self._first_rank(place.node)
        self.world_size = self._first_rank(place.nodes)
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="commtrace-node", daemon=True)
        if place.nodes > 1:
            self._heart.start()

    def failure(self) -> Failure | None:
        """What another node failed of."""
        if self.place.nodes == 1:
            return None
        try:
            failed = self._store.check(["commtrace/failed"])
        except RuntimeError:  # of the store: nobody serves it any more
            return Failure(0, f"its node, {self.place.host}, is gone", died=True)
        return self._first_failure() if failed else None

    def tell(self, failure: Failure) -> Failure:
        """Tell the others that this node has failed; which failure came first."""
        if self.place.nodes == 1:
            return failure
        with contextlib.suppress(RuntimeError):
            self._put("failure", asdict(failure))
            self._store.set("commtrace/failed", "1")
            return self._first_failure() or failure
        return failure

    def wait(self, limit_s: float = math.inf) -> Failure | None:
        """Say that this node is done; on the first, whose store they need, wait for the others.

        For as long as they live. Returns what one of them has failed of meanwhile.
        """
        if self.place.nodes == 1:
            return None
        with contextlib.suppress(RuntimeError):
            self._put("left", {})
            if self.place.node == 0:
                gone = [self._see_off(node, limit_s) for node in range(1, self.place.nodes)]
                return self.failure() or next(filter(None, gone), None)
        return None

    def close(self) -> None:
        """Show no sign of life any more."""
        self._over.set()
        if self._heart.is_alive():
            self._heart.join()

    def _see_off(self, node: int, limit_s: float) -> Failure | None:
        """Wait until a node has left. If it ceases to live before: that."""
        began = heard = time.monotonic()
        beats = 0
        while not self._store.check([self._key(node, "left")]):
            now, before = time.monotonic(), beats
            beats = self._store.add(self._key(node, "beats"), 0)
            heard = heard if beats == before else now
            if now - heard > _SILENCE_S:
                host = self._others[node]["host"]
                return Failure(self._first_rank(node), f"its node, {host}, is gone", died=True)
            if now - began > limit_s:
                break
            time.sleep(_POLL_S)
        return None

    def _beat(self) -> None:
        with contextlib.suppress(RuntimeError):  # of the store: nobody serves it any more
            while not self._over.wait(_BEAT_S):
                self._store.add(self._key(self.place.node, "beats"), 1)

    def _first_rank(self, node: int) -> int:
        return sum(other["ranks"] for other in self._others[:node])

    def _first_failure(self) -> Failure | None:
        time.sleep(_SETTLE_S)
        keys = [self._key(node, "failure") for node in range(self.place.nodes)]
        failures = [json.loads(self._store.get(key)) for key in keys if self._store.check([key])]
        return min((Failure(**one) for one in failures), key=lambda one: one.order, default=None)

    def _key(self, node: int, what: str) -> str:
        return f"commtrace/node{node}/{what}"

    def _put(self, what: str, value: Mapping[str, Any]) -> None:
        self._store.set(self._key(self.place.node, what), json.dumps(value))

    def _get(self, node: int, what: str, timeout_s: float) -> Any:
        key = self._key(node, what)
        deadline = time.monotonic() + timeout_s
        while not self._store.check([key]):  # again and again, so that Ctrl-C is heard
            if time.monotonic() > deadline:
                raise RecordError(
                    f"node {node} has not come to {self.place.host}:{self.port} "
                    f"within {timeout_s:.0f} s; start commtrace record there, too"
                )
            time.sleep(_POLL_S)
        return json.loads(self._store.get(key))


@contextlib.contextmanager
def meet(place: Place, ranks: int, timeout_s: float) -> Iterator[Nodes]:
    """All nodes together, each with so many ranks, until this one leaves."""
    port, store = _store(place, timeout_s)
    nodes = Nodes(place, port, store, ranks, timeout_s)
    with contextlib.closing(nodes):
        try:
            yield nodes
        finally:
            nodes.wait(_FAREWELL_S)
            del store


def _store(place: Place, timeout_s: float) -> tuple[int, Any]:
    """The port of the store and a connection to it; on the first node the store itself.

    Its socket is bound before anyone gets its number: no other program can take it; and
    to one address, so that only who reaches that can reach the store.
    """
    from torch.distributed import TCPStore

    timeout = timedelta(seconds=timeout_s)
    if place.node:
        return place.port, _connection(place, timeout_s)
    with _listener(place) as listener:
        port: int = listener.getsockname()[1]
        return port, TCPStore(
            place.host,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timeout,
            master_listen_fd=listener.detach(),
            use_libuv=False,  # which before torch 2.8 never answers on a socket it was given
        )


def _connection(place: Place, timeout_s: float) -> Any:
    from torch.distributed import TCPStore

    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        # While torch waits it does not hear Ctrl-C, so ask it for little at a time.
        with contextlib.suppress(OSError):
            socket.create_connection((place.host, place.port), _TRY_S).close()
            return TCPStore(place.host, place.port, timeout=timedelta(seconds=timeout_s))
        time.sleep(_POLL_S)
    raise RecordError(
        f"nobody at {place.host}:{place.port} within {timeout_s:.0f} s; "
        "start commtrace record on node 0, too"
    )


def _listener(place: Place) -> socket.socket:
    where = (place.host, place.port)
    try:
        family, *_, address = socket.getaddrinfo(*where, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        number = error.errno or 0  # below 0 where the name is not known
        why = os.strerror(number) if number > 0 else error.strerror
        raise UsageError(
            f"--rdzv-endpoint {place.host}:{place.port}: {why}; "
            "name an address of node 0 with a free port"
        ) from None
