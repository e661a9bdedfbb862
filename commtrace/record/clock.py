"""How far a rank's clock is from rank 0's, by asking for the time over a socket.

Cristian's algorithm: what rank 0's clock shows when it answers lies between the question
and the answer on the asker's clock. Of several rounds the fastest tells most. Nothing of
torch takes part, so that no trace, sequence number or flight recorder shows it.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from dataclasses import asdict, dataclass
from typing import Any, Protocol

__all__ = ["Clock", "Reading"]

ROUNDS = 20
TIMEOUT_S = 10.0
"""How long to wait for another rank. Who is later is not asked, and asks in vain."""

_POLL_S = 0.01
_TIME = struct.Struct("<q")


class _Store(Protocol):
    def set(self, key: str, value: str) -> object: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


@dataclass(frozen=True)
class Reading:
    """At ``at_ns`` of its own clock a rank is ``offset_ns`` ahead of rank 0, give or take."""

    at_ns: int
    offset_ns: int
    error_ns: int

    def to_dict(self) -> dict[str, int]:
        """As it is written into traces."""
        return asdict(self)


class Clock:
    """A connection from every other rank to rank 0, for as long as the context lasts.

    All ranks make one at the same time; rank 0 listens at ``host``. A rank that cannot
    connect has no readings. Each clock of one store needs a ``key`` of its own there.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: _Store,
        host: str,
        key: str = "commtrace/clock",
    ) -> None:
        self._rank, self._key = rank, key
        self._peers: list[socket.socket] = []
        if world_size > 1:
            with contextlib.suppress(OSError):
                self._listen(world_size, store, host) if rank == 0 else self._connect(store)

    def __enter__(self) -> Clock:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect."""
        for peer in self._peers:
            peer.close()

    def read(self) -> list[Reading]:
        """One reading, or none where rank 0 does not answer. Every rank must take part."""
        deadline = time.monotonic() + TIMEOUT_S
        readings = [Reading(time.time_ns(), 0, 0)] if self._rank == 0 else []
        for peer in list(self._peers):
            try:
                if self._rank == 0:
                    _answer(peer, deadline)
                else:
                    readings.append(_asked(peer, deadline))
            except (OSError, struct.error):
                # A late answer would be taken for that of the next question.
                self._peers.remove(peer)
                peer.close()
        return readings

    def _listen(self, world_size: int, store: _Store, host: str) -> None:
        address = ""
        try:
            with socket.create_server((host, 0), backlog=world_size) as listener:
                listener.settimeout(TIMEOUT_S)
                address = f"{host} {listener.getsockname()[1]}"
                store.set(self._key, address)
                for _ in range(world_size - 1):
                    self._add(listener.accept()[0])
        finally:
            if not address:  # it is not this host's: nobody need wait
                store.set(self._key, address)

    def _connect(self, store: _Store) -> None:
        # Asked again and again: a store that waits lets no other thread ask.
        deadline = time.monotonic() + TIMEOUT_S
        while not store.check([self._key]):
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_S)
        host, _, port = store.get(self._key).decode().partition(" ")
        if port:
            self._add(socket.create_connection((host, int(port)), TIMEOUT_S))

    def _add(self, peer: socket.socket) -> None:
        peer.settimeout(TIMEOUT_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peers.append(peer)


def _answer(peer: socket.socket, deadline: float) -> None:
    """Tell the time as often as asked. Raises OSError if the peer is gone or too late."""
    for _ in range(ROUNDS):
        if not _received(peer, 1, deadline):
            raise ConnectionResetError
        peer.sendall(_TIME.pack(time.time_ns()))


def _received(peer: socket.socket, size: int, deadline: float) -> bytes:
    peer.settimeout(max(deadline - time.monotonic(), _POLL_S))
    return peer.recv(size)


def _asked(peer: socket.socket, deadline: float) -> Reading:
    """The best of all rounds. Raises OSError or struct.error if there is no answer."""
    readings = []
    for _ in range(ROUNDS):
        before = time.time_ns()
        peer.sendall(b"?")
        answer = _received(peer, _TIME.size, deadline)
        after = time.time_ns()
        (theirs,) = _TIME.unpack(answer)
        middle = (before + after) // 2
        readings.append(Reading(middle, middle - theirs, (after - before + 1) // 2))
    return min(readings, key=lambda reading: reading.error_ns)
