"""Hosts that are network namespaces of this machine, on one switch; a link may be slow.

Their clocks are really one. Needs root and iproute2's ``ip`` and ``tc``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["HOSTS", "joined", "lacking", "nodes", "shape"]

ROOT = Path(__file__).parent.parent
HOSTS = tuple(f"commtrace-{letter}" for letter in "abcd")
SWITCH = "commtrace-switch"
ENDPOINT = "10.77.0.1:29477"


def lacking() -> str:
    """What there has to be and is not; empty where hosts can be joined."""
    missing = [tool for tool in ("ip", "tc") if not shutil.which(tool)]
    if os.geteuid():
        return "needs root"
    return f"needs {' and '.join(missing)} of iproute2" if missing else ""


@contextlib.contextmanager
def joined(count: int = 2) -> Iterator[None]:
    """So many hosts, each with a cable to the switch."""
    hosts = HOSTS[:count]
    try:
        for name in (SWITCH, *hosts):
            _ip("netns", "add", name)
        _ip("-n", SWITCH, "link", "add", "switch", "type", "bridge")
        _ip("-n", SWITCH, "link", "set", "switch", "up")
        for number, host in enumerate(hosts, start=1):
            port = f"port{number}"
            _ip("link", "add", "eth0", "netns", host, "type", "veth",
                "peer", "name", port, "netns", SWITCH)  # fmt: skip
            _ip("-n", SWITCH, "link", "set", port, "master", "switch", "up")
            _ip("-n", host, "addr", "add", _address(number - 1, "/24"), "dev", "eth0")
            _ip("-n", host, "link", "set", "eth0", "up")
            # Under bbr a connection with few messages stalls for 200 ms at a time.
            _ip("-n", host, "route", "replace", _address(-1, "/24"), "dev", "eth0",
                "congctl", "cubic")  # fmt: skip
            _ip("-n", host, "link", "set", "lo", "up")
        yield
    finally:
        for name in (SWITCH, *hosts):
            subprocess.run(["ip", "netns", "del", name], check=False)


def shape(sender: int, receiver: int, mbit: int | None) -> None:
    """Let one host send another so many megabits per second; None: as many as it can."""
    tc = ("ip", "netns", "exec", HOSTS[sender], "tc")
    subprocess.run(
        [*tc, "qdisc", "del", "dev", "eth0", "root"], check=False, stderr=subprocess.DEVNULL
    )
    if mbit:
        to_it = f"u32 match ip dst {_address(receiver, '/32')}"
        for command in (
            "qdisc add dev eth0 root handle 1: htb default 1",
            f"class add dev eth0 parent 1: classid 1:2 htb rate {mbit}mbit burst 64kb",
            f"filter add dev eth0 parent 1: protocol ip {to_it} flowid 1:2",
        ):
            subprocess.run([*tc, *command.split()], check=True, stderr=subprocess.DEVNULL)


def nodes(
    folder: Path, *what: str, hosts: int = 2, ranks: int = 1
) -> list[subprocess.Popen[bytes]]:
    """``commtrace record`` of so many ranks on each of the hosts, into a folder of its own."""
    return [
        subprocess.Popen(
            [
                *("ip", "netns", "exec", host, "unshare", "--uts", "sh", "-c"),
                f'hostname {host}; export GLOO_SOCKET_IFNAME=eth0; exec "$@"',
                *("sh", sys.executable, "-m", "commtrace", "record", "-n", str(ranks)),
                *("--nnodes", str(hosts), "--node-rank", str(number), "--rdzv-endpoint", ENDPOINT),
                *("-o", str(folder.resolve() / host), *what),
            ],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number, host in enumerate(HOSTS[:hosts])
    ]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _address(host: int, prefix: str) -> str:
    return f"10.77.0.{host + 1}{prefix}"
