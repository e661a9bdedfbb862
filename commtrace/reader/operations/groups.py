"""Process groups: what a trace's metadata and its operations tell of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from operator import eq
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from commtrace.reader.json.events import Arguments

__all__ = ["Group", "Groups", "listed_ranks"]

_LARGEST_GROUP = 1_000_000
_MOST_IMPLIED = 1 << 20  # ranks of all groups
_MOST = 256  # groups of one name, or to choose from: more would cost their square
_NUMBER = re.compile(r"(?<!\d)\d{1,9}(?!\d)")


class Group(Struct, frozen=True):
    """One group; ``ranks`` are global, in the order of the group's own ranks."""

    name: str
    size: int | None = None
    ranks: Sequence[int] | None = None
    description: str | None = None
    backend: str | None = None

    def member(self, index: int) -> int | None:
        """The global rank of a rank of the group; None if unknown."""
        ranks = self.ranks or ()
        return ranks[index] if 0 <= index < len(ranks) else None


class Groups:
    """The groups that one rank knows: those its trace lists, and those its operations name.

    ``unreadable`` counts the entries listed that are no groups; ``unlisted`` the groups
    whose ranks are only implied, and are not spelled out for their number.
    """

    def __init__(self, listed: Any, world_size: int | None, rank: int) -> None:
        self.known: list[Group] = []
        self.unreadable = self.unlisted = 0
        self._rank = rank
        self._implied = 0
        self._seen: dict[tuple[str, str, int | None], Group] = {}
        self._by_name: dict[str, list[Group]] = defaultdict(list)
        self._mine: list[Group] = []
        # Of the groups with this rank. Everybody is in the default group, listed or not.
        self._my_sizes = {world_size}
        for item in listed if isinstance(listed, list) else []:
            config = _configured(item)
            if config is None:
                self.unreadable += 1
            else:
                self._add(self._of(config, world_size))

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
        namesakes = self._by_name.get(name)
        return namesakes[0] if namesakes else self._add(Group(name))

    def candidates(self, peer: int | None = None) -> list[Group]:
        """The groups that an operation can belong to, given its peer's rank in the group.

        Of very many, some: more than one is as good as all.
        """
        if peer is None or len(self._mine) > _MOST:
            return self._mine[:_MOST]
        return [
            group
            for group in self._mine
            if group.ranks is None or group.member(peer) not in (None, self._rank)
        ]

    def common_size(self, *, alone: bool) -> int | None:
        """The size of all groups that this rank is in: the world's. None where they differ.

        Groups of one rank count only if operations of one rank run (``alone``).
        """
        sizes = self._my_sizes if alone else self._my_sizes - {1}
        return next(iter(sizes)) if self._mine and len(sizes) == 1 else None

    def sizes(self, default: int) -> set[int | None]:
        """The sizes that a group can have; the default where no group is known."""
        return {group.size for group in self.candidates()} or {default}

    def _add(self, group: Group) -> Group:
        self.known.append(group)
        self._by_name[group.name].append(group)
        if group.ranks is None or self._rank in group.ranks:
            self._mine.append(group)
            self._my_sizes.add(group.size)
        return group

    def _of(self, config: _Config, world_size: int | None) -> Group:
        ranks: Sequence[int] | None = tuple(config.ranks or ())
        size = len(config.ranks or ()) or config.pg_size
        if not ranks and size is not None and size == world_size:
            ranks = self._spread(range(size))
        backend = _backends(config.backend_config)
        return Group(str(config.pg_name), size, ranks or None, config.pg_desc, backend)

    def _identified(self, name: str, args: Arguments) -> Group:
        listed, cut = listed_ranks(args.group_ranks)
        size = args.group_size
        if size is None or not 0 < size <= _LARGEST_GROUP:
            size = None if cut else len(listed) or None
        for group in self._by_name[name][:_MOST]:
            if _agree(group, listed, cut, size):
                return group
        ranks = self._spread(_spaced(args, size, listed)) if cut else listed
        return self._add(Group(name, size, ranks or None, args.group_description))

    def _spread(self, ranks: range | None) -> range | None:
        """Ranks that few words imply, unless that makes too many in all."""
        if ranks is None:
            return None
        self._implied += len(ranks)
        if self._implied <= _MOST_IMPLIED:
            return ranks
        self.unlisted += 1
        return None


_Rank = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _Config(Struct):
    pg_name: str | int
    pg_desc: str | None = None
    backend_config: str | None = None
    pg_size: Annotated[int, msgspec.Meta(ge=0, le=_LARGEST_GROUP)] | None = None
    ranks: list[_Rank] | dict[_Rank, int] | None = None


def _configured(item: Any) -> _Config | None:
    try:
        return msgspec.convert(item, _Config, strict=False)
    except msgspec.ValidationError:
        return None


def _backends(config: str | None) -> str | None:
    """``cpu:gloo,cuda:gloo`` is gloo; two backends are named with their devices."""
    if not config:
        return None
    backends = {part.rpartition(":")[2] for part in config.split(",")}
    return backends.pop() if len(backends) == 1 else config


def listed_ranks(ranks: str | list[int] | None) -> tuple[tuple[int, ...], bool]:
    """The ranks in a list or its text, and whether torch cut it after the thirtieth."""
    text = str(ranks or "")
    return tuple(int(found[0]) for found in _NUMBER.finditer(text)), "..." in text


def _agree(group: Group, listed: tuple[int, ...], cut: bool, size: int | None) -> bool:
    if size is not None and group.size is not None and size != group.size:
        return False
    if group.ranks is None or not listed:
        return True
    alike = all(map(eq, group.ranks, listed))
    return alike and (cut or len(group.ranks) == len(listed)) and len(group.ranks) >= len(listed)


def _spaced(args: Arguments, size: int | None, listed: tuple[int, ...]) -> range | None:
    start, stride = args.rank_start, args.rank_stride
    if start is None or stride is None or size is None or start < 0 or stride <= 0:
        return None
    ranks = range(start, start + stride * size, stride)
    return ranks if tuple(ranks[: len(listed)]) == listed else None
