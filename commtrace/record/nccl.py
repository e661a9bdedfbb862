"""What NCCL said with NCCL_DEBUG=INFO: its version, and the algorithms that it chose."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["facts"]

_VERSION = re.compile(r"NCCL version (\S+)")
# "AllReduce: 4194304 Bytes -> Algo RING proto SIMPLE"; before 2.24 numbers, and no name.
_CHOICE = re.compile(r"NCCL INFO (?:(\w+): )?(\d+) Bytes -> Algo (\w+) proto (\w+)")
# Their order in NCCL's src/include/nccl_common.h.
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")


def facts(logs: Iterable[Path]) -> dict[str, Any] | None:
    """``version`` and ``choices`` (operation, bytes, algorithm, protocol, count); None if silent.

    Operations and counts are over all ranks; an operation is None where NCCL does not name it.
    """
    version: str | None = None
    choices: Counter[tuple[str | None, int, str, str]] = Counter()
    for log in sorted(logs):
        with log.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if match := _CHOICE.search(line):
                    choices[_choice(match)] += 1
                elif match := _VERSION.search(line):
                    version = match[1]
    if not version and not choices:
        return None
    columns = ("operation", "bytes", "algorithm", "protocol")
    counted = [{**dict(zip(columns, key, strict=True)), "count": n} for key, n in choices.items()]
    return {"version": version, "choices": counted}


def _choice(match: re.Match[str]) -> tuple[str | None, int, str, str]:
    name, size, algorithm, protocol = match.groups()
    return name, int(size), _named(algorithm, _ALGORITHMS), _named(protocol, _PROTOCOLS)


def _named(text: str, names: tuple[str, ...]) -> str:
    return names[int(text)] if text.isdecimal() and int(text) < len(names) else text
