"""What the names of trace files tell: the rank, or a place in each parallel dimension.

``rank3``, ``rank-3``, ``rank[3]`` and ``worker_3`` name a rank, as TorchTitan, Megatron and
TensorRT-LLM write it, ``profile_3.json`` does in Accelerate; ``-TP-1-DP-0`` (SGLang) and
``dp0_pp0_tp1`` (vLLM) name a place, which is a rank once all of them are known.
``host_4711.1700000000.pt.trace.json`` (TensorBoard's) names a process and a time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["natural", "ranks_in_names", "worker"]

_RANK = re.compile(r"(?<!local)(?<!local[-_.])(?:rank|worker)[-_.=\[]?(\d{1,9})", re.I)
_ACCELERATE = re.compile(r"profile_(\d{1,9})\.json(?:\.gz)?")
_SGLANG = re.compile(r"-(DP|PP|CP|TP|EP)-(\d{1,6})(?!\d)")
_VLLM = re.compile(r"(?<![a-z])(dp|pp|pcp|tp|dcp|ep)(\d{1,6})(?=_|\.|$)")
_VLLM_PLACE = re.compile(r"(?<![a-z])dp\d+_pp\d+_(?:pcp\d+_)?tp\d+")
_PROCESS = re.compile(r"(.+)\.\d{10,}\.pt\.trace\.json(?:\.gz)?")

_DIMENSIONS = ("dp", "pp", "pcp", "cp", "tp")
"""Those that ranks are counted by, the slowest first; dcp and ep divide them anew."""

Place = Mapping[str, int]


def ranks_in_names(files: Iterable[Path]) -> dict[Path, int]:
    """The rank of each file whose name tells one.

    Of places in dimensions, the fewest dimensions that tell all files apart count, ``tp``
    the fastest. They also count where one rank is named in several of them: of vLLM's data
    parallel engines each counts its own ranks.
    """
    files = list(files)
    named = {file: rank for file in files if (rank := _rank(file.name)) is not None}
    places = {file: place for file in files if (place := _place(file.name))}
    alike: dict[int, set[tuple[int, ...]]] = {}
    for file in places.keys() & named.keys():
        alike.setdefault(named[file], set()).add(_key(places[file], _DIMENSIONS))
    if any(len(several) > 1 for several in alike.values()):
        return {**named, **_ranks(places)}
    return {**_ranks({f: p for f, p in places.items() if f not in named}), **named}


def worker(file: Path) -> str | None:
    """What TensorBoard's handler calls the process that a file is of; None of other files."""
    match = _PROCESS.fullmatch(file.name)
    return match and match[1]


def natural(path: Path) -> list[tuple[int, str]]:
    """The key of natural order: ``rank2`` before ``rank10``."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _rank(name: str) -> int | None:
    match = _RANK.search(name) or _ACCELERATE.fullmatch(name)
    return int(match[1]) if match else None


def _place(name: str) -> Place:
    found = _SGLANG.findall(name) or (_VLLM.findall(name) if _VLLM_PLACE.search(name) else [])
    return {dimension.lower(): int(number) for dimension, number in found}


def _key(place: Place, dimensions: Iterable[str]) -> tuple[int, ...]:
    return tuple(place.get(dimension, 0) for dimension in dimensions)


def _ranks(places: Mapping[Path, Place]) -> dict[Path, int]:
    """With SGLang's data parallel attention dp only repeats what tp tells: so tp comes first."""
    whole = len({_key(place, _DIMENSIONS) for place in places.values()})
    for fewest in range(1, len(_DIMENSIONS) + 1):
        dimensions = _DIMENSIONS[-fewest:]
        if len({_key(place, dimensions) for place in places.values()}) == whole:
            break
    sizes = [
        1 + max((place.get(dimension, 0) for place in places.values()), default=0)
        for dimension in dimensions
    ]
    ranks = {}
    for file, place in places.items():
        rank = 0
        for index, size in zip(_key(place, dimensions), sizes, strict=True):
            rank = rank * size + index
        ranks[file] = rank
    return ranks
