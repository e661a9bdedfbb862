"""Measures: the tables of one run, each computed once, when it is first asked for."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from commtrace.arrays import Int32, Int64
from commtrace.diagnosis import CannotLook, Note
from commtrace.heap import give_back
from commtrace.machine import Machine
from commtrace.packed import Packed, columns_in
from commtrace.table import Columns, Rows
from commtrace.trace_tables import TABLES

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Measures", "Sealed", "learn", "measure", "name_of", "rank_measure", "taken"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_ALL = slice(None)
_TABLES = {table.name: table for table in TABLES}
_MANY = 100_000  # rows of ``collectives``


class Sealed(bytes):
    """What another process found of a rank, as it came, until it is asked for.

    Of thousands of ranks the objects of many small arrays would take more memory than the arrays,
    and leave holes between those that are kept longer.
    """

    @classmethod
    def of(cls, columns: Columns) -> Sealed:
        """Columns, in the process that found them."""
        return cls(pickle.dumps(columns, pickle.HIGHEST_PROTOCOL))

    def opened(self) -> Columns:
        """The columns."""
        columns: Columns = pickle.loads(self)
        return columns


class _Table:
    """A table, which may be given packed, or as a frame; who asks for the field gets a frame."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __set__(self, run: Measures, table: Rows | Packed | pd.DataFrame) -> None:
        if not isinstance(table, Rows | Packed):
            table = Rows(_TABLES[self._name], columns_in(table), len(table))
        run.__dict__[f"_{self._name}"] = table

    def __get__(self, run: Measures | None, owner: type) -> pd.DataFrame:
        if run is None:
            raise AttributeError  # so that there is no default
        its: Rows | Packed = run.__dict__[f"_{self._name}"]
        return its.frame()


@dataclass(frozen=True, eq=False)
class Measures:
    """A run: what its ranks' traces hold, as tables (``trace_tables``), and what follows.

    Every function under ``metrics`` takes one of these and is computed once for it: what was asked
    for is kept here, and travels with it when it is pickled. ``rows`` gives a table's columns as
    numpy arrays, its field a DataFrame of them. They are shared, never copied: do not change them
    in place. Those of many rows are Packed, and unpacked when they are asked for. ``manifest`` is
    what ``commtrace record`` wrote beside the traces, or None for anybody else's; its
    ``clock_probe`` lists dicts of ``rank``, ``at_ns`` (on that rank's clock), ``offset_ns`` (to
    subtract from the rank's times to reach rank 0's) and ``error_ns`` (the true offset is no
    further off), normally one before and one behind the window; a recording may lack it.
    ``machines`` is what traces tell of their ranks' machines. ``notes`` says what was wrong with
    the files, and what had to be assumed. ``pauses`` are the starts and ends of the times in which
    a rank was not recorded, between the cycles of a profiler's schedule. ``measured`` are the ranks
    that the processes that read them measured, ``asked`` the measures that are being computed.
    """

    kernels: _Table = _Table()
    copies: _Table = _Table()
    blocking_calls: _Table = _Table()
    synchronisations: _Table = _Table()
    collectives: _Table = _Table()
    ops: _Table = _Table()
    host_operators: _Table = _Table()
    host_gaps: _Table = _Table()
    steps: _Table = _Table()
    groups: _Table = _Table()
    ranks: _Table = _Table()
    probes: _Table = _Table()
    notes: tuple[Note, ...] = ()
    manifest: Mapping[str, Any] | None = None
    machines: Mapping[int, Machine] = field(default_factory=dict)
    pauses: Mapping[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    known: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, repr=False)
    asked: list[tuple[Any, ...]] = field(default_factory=list, init=False, repr=False)
    measured: set[int] = field(default_factory=set, init=False, repr=False)

    def rows(self, table: str, at: slice | Int32 | Int64 = _ALL) -> Rows:
        """A table's rows as numpy columns, or some of them."""
        its: Rows | Packed = self.__dict__[f"_{table}"]
        if isinstance(its, Packed):
            return its.all if at is _ALL else its.some(at)
        return its if at is _ALL else its.take(at)

    def packed(self, table: str) -> Packed | None:
        """A table as it is kept, if it is packed."""
        its = self.__dict__.get(f"_{table}")
        return its if isinstance(its, Packed) else None

    def told(self, part: str) -> Mapping[str, Any]:
        """A part of the manifest, by name; empty where it has none.

        Anybody can have written it: what is no such part is none.
        """
        its = (self.manifest or {}).get(part)
        return its if isinstance(its, Mapping) else {}

    def paused_ns(self, rank: int, start_ns: int, end_ns: int) -> int:
        """How much of a span a rank was not recorded."""
        return sum(
            max(0, min(end, end_ns) - max(start, start_ns))
            for start, end in self.pauses.get(rank, ())
        )


def measure(
    function: Callable[Concatenate[Measures, _P], _T],
) -> Callable[Concatenate[Measures, _P], _T]:
    """A function of a run and of hashable settings, computed once for each run and setting.

    That it raises CannotLook is kept, too. What else it took goes back to the system, once those
    that asked for it are done as well: of many operations that adds up to as much as what is kept.
    """
    return _once(function, lambda run: len(run.rows("collectives")) > _MANY)


def rank_measure(
    function: Callable[Concatenate[Measures, _P], _T],
) -> Callable[Concatenate[Measures, _P], _T]:
    """The same of a run and some of its ranks, that looks at nothing of others.

    So a process that has just read a rank can tell it. What else it takes is little.
    """
    return _once(function, lambda _: False)


def _once(
    function: Callable[Concatenate[Measures, _P], _T], takes_much: Callable[[Measures], bool]
) -> Callable[Concatenate[Measures, _P], _T]:
    @wraps(function)
    def kept(run: Measures, /, *args: _P.args, **settings: _P.kwargs) -> _T:
        key = (*_named(function), args, *sorted(settings.items()))
        if key not in run.known:
            run.asked.append(key)
            try:
                run.known[key] = function(run, *args, **settings)
            except CannotLook as reason:
                run.known[key] = reason
            finally:
                run.asked.pop()
            if not run.asked and takes_much(run):
                give_back()
        if isinstance(answer := run.known[key], Sealed):
            answer = run.known[key] = answer.opened()
        if isinstance(answer, CannotLook):
            raise CannotLook(*answer.args)
        return cast("_T", answer)

    return kept


def learn(run: Measures, rank: int, found: Mapping[str, Columns | Sealed]) -> None:
    """Take over what the process that read a rank found of it, by the names of measures."""
    if found:
        run.measured.add(rank)
    for name, columns in found.items():
        key = (*name.split(":"), (rank,))
        run.known[key] = columns


def taken(function: Callable[..., _T], run: Measures, /, *args: int) -> _T:
    """What a measure finds, which is not kept any longer: for what is large, or asked for once."""
    found = function(run, *args)
    key = (*_named(function), args)
    del run.known[key]
    return found


def name_of(function: Callable[..., Any]) -> str:
    """A measure's name, by which any process knows it."""
    return ":".join(_named(function))


def _named(function: Callable[..., Any]) -> tuple[str, str]:
    return function.__module__, function.__qualname__
