"""Process groups: what a trace's metadata and its operations tell of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from commtrace.reader.events import Arguments

__all__ = ["Group", "Groups"]

_LARGEST_GROUP = 1_000_000


@dataclass(frozen=True)
class Group:
    """One group; ``ranks`` are global, in the order of the group's own ranks."""

    name: str
    size: int | None = None
    ranks: tuple[int, ...] | None = None
    description: str | None = None
    backend: str | None = None

    def member(self, index: int) -> int | None:
        """The global rank of a rank of the group; None if untold."""
        ranks = self.ranks or ()
        return ranks[index] if 0 <= index < len(ranks) else None


class Groups:
    """The groups that one rank knows: those its trace lists, and those its operations name."""

    def __init__(self, listed: Any, world_size: int | None, rank: int) -> None:
        self._rank = rank
        self._seen: dict[tuple[str, str, int | None], Group] = {}
        items = listed if isinstance(listed, list) else []
        parsed = [_configured(item, world_size) for item in items]
        self.known = [group for group in parsed if group is not None]
        self.unreadable = parsed.count(None)

    def named(self, args: Arguments) -> Group | None:
        """The group that an operation names, added to those known; None if it names none."""
        name = args.group if args.group not in (None, "") else args.group_id
        if name is None:
            return None
        key = (str(name), str(args.group_ranks), args.group_size)
        if key not in self._seen:
            self._seen[key] = self._identified(str(name), args)
        return self._seen[key]

    def called(self, name: str) -> Group:
        """The group of a name, added to those known."""
        for group in self.known:
            if group.name == name:
                return group
        self.known.append(Group(name))
        return self.known[-1]

    def candidates(self, peer: int | None = None) -> list[Group]:
        """The groups that an operation can belong to, given its peer's rank in the group."""
        return [group for group in self.known if self._possible(group, peer)]

    def sizes(self, default: int) -> set[int | None]:
        """The sizes that a group can have; the default where no group is known."""
        return {group.size for group in self.candidates()} or {default}

    def _possible(self, group: Group, peer: int | None) -> bool:
        if group.ranks is None:
            return True
        if self._rank not in group.ranks:
            return False
        return peer is None or group.member(peer) not in (None, self._rank)

    def _identified(self, name: str, args: Arguments) -> Group:
        listed, cut = _listed(args.group_ranks)
        size = args.group_size
        if size is None or not 0 < size <= _LARGEST_GROUP:
            size = None if cut else len(listed) or None
        for group in self.known:
            if group.name == name and _agree(group, listed, cut, size):
                return group
        ranks = _spaced(args, size, listed) if cut else tuple(listed)
        group = Group(name, size, ranks or None, args.group_description)
        self.known.append(group)
        return group


_Rank = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _Config(msgspec.Struct):
    pg_name: str | int
    pg_desc: str | None = None
    backend_config: str | None = None
    pg_size: Annotated[int, msgspec.Meta(ge=0, le=_LARGEST_GROUP)] | None = None
    ranks: list[_Rank] | dict[_Rank, int] | None = None


def _configured(item: Any, world_size: int | None) -> Group | None:
    try:
        config = msgspec.convert(item, _Config, strict=False)
    except msgspec.ValidationError:
        return None
    ranks = tuple(config.ranks or ())
    size = len(ranks) or config.pg_size
    if not ranks and size is not None and size == world_size:
        ranks = tuple(range(size))
    return Group(
        str(config.pg_name), size, ranks or None, config.pg_desc, _backends(config.backend_config)
    )


def _backends(config: str | None) -> str | None:
    """``cpu:gloo,cuda:gloo`` is gloo; two backends are told with their devices."""
    if not config:
        return None
    backends = {part.rpartition(":")[2] for part in config.split(",")}
    return backends.pop() if len(backends) == 1 else config


def _listed(ranks: Any) -> tuple[list[int], bool]:
    """The ranks in a list or its text, and whether torch cut it after the thirtieth."""
    text = str(ranks or "")
    return [int(n) for n in re.findall(r"\d{1,9}", text)], "..." in text


def _agree(group: Group, listed: list[int], cut: bool, size: int | None) -> bool:
    if size is not None and group.size is not None and size != group.size:
        return False
    if group.ranks is None or not listed:
        return True
    return list(group.ranks[: len(listed)] if cut else group.ranks) == listed


def _spaced(args: Arguments, size: int | None, listed: list[int]) -> tuple[int, ...] | None:
    start, stride = args.rank_start, args.rank_stride
    if start is None or stride is None or size is None or start < 0 or stride <= 0:
        return None
    ranks = tuple(range(start, start + stride * size, stride))
    return ranks if list(ranks[: len(listed)]) == listed else None
