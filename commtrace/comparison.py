"""Comparison: what a notebook holds of two runs. A thin facade over what is below."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeAlias

from commtrace.errors import UsageError
from commtrace.run import Run, load

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from commtrace.comparing.compared import Compared
    from commtrace.comparing.findings import Findings
    from commtrace.diagnosis import Note

__all__ = ["Comparison", "compare"]

_One: TypeAlias = "Run | str | os.PathLike[str]"
Side: TypeAlias = "_One | Sequence[_One]"
"""A recording, or several of the same program: runs, or paths as ``load`` takes them."""


def compare(
    base: Side,
    candidate: Side,
    *,
    same_pct: float | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], object] | None = None,
    read_bytes: Callable[[int, int], object] | None = None,
) -> Comparison:
    """Whether the candidate is slower than the base, by what, and whether that is real.

    Each side is one recording or several. ``same_pct`` is the change, in percent of a step, that
    has to be ruled out for the verdict ``same``: 5 unless given. ``workers``, ``progress`` and
    ``read_bytes`` are ``load``'s, for each recording in turn. Raises TraceError as ``load``.
    """
    from commtrace.comparing.compared import compared
    from commtrace.comparing.recorded import Recorded
    from commtrace.diagnosis import Diagnosis

    read = partial(load, workers=workers, progress=progress, read_bytes=read_bytes)

    def recorded(one: _One) -> Recorded:
        run = one if isinstance(one, Run) else read(one)
        analysis = run.analysis()
        return Recorded(analysis.run, run.measures, Diagnosis(analysis.verdict.faults))

    sides = [[recorded(one) for one in _several(side)] for side in (base, candidate)]
    if not all(sides):
        raise UsageError("compare: needs a recording on each side")
    return Comparison(compared(sides[0], sides[1], same_pct))


def _several(side: Side) -> Sequence[_One]:
    return [side] if isinstance(side, Run | str | os.PathLike) else side


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Two sides compared: the verdict, the step, and tables as ``comparing.tables`` has them."""

    compared: Compared

    @property
    def verdict(self) -> str:
        """`same`, `slower`, `faster` or `inconclusive`."""
        return self.compared.verdict

    @property
    def step(self) -> dict[str, Any]:
        """The mean step of both sides, the change in percent and its interval."""
        return dict(vars(self.compared.step))

    @property
    def changes(self) -> pd.DataFrame:
        """What the step's change is made of, largest first: ``comparing.tables.CHANGES``."""
        return self.compared.changes.frame()

    @property
    def rest_ns(self) -> int:
        """What the rows of ``changes`` do not sum to."""
        return self.compared.rest_ns

    @property
    def operations(self) -> pd.DataFrame:
        """The operations of a step of both sides: ``comparing.tables.COUNTS``."""
        return self.compared.operations.frame()

    @property
    def kernels(self) -> pd.DataFrame:
        """The kernels, on a CPU the operators, of a step: ``comparing.tables.WORK``."""
        return self.compared.kernels.frame()

    @property
    def ranks(self) -> pd.DataFrame:
        """What the steps of each rank have: ``comparing.tables.RANKS``."""
        return self.compared.ranks.frame()

    @property
    def outlying_steps(self) -> pd.DataFrame:
        """The steps that do not count: ``comparing.tables.OUTLYING``."""
        return self.compared.outlying.frame()

    @property
    def findings(self) -> Findings:
        """The findings that are ``new``, ``resolved`` and ``remaining``."""
        return self.compared.findings

    @property
    def notes(self) -> tuple[Note, ...]:
        """What else differs, and what disturbed a recording."""
        return self.compared.notes

    def __repr__(self) -> str:
        from commtrace.reports.content.comparison import headline

        return f"<Comparison: {headline(self.compared)}>"

    def _repr_html_(self) -> str:
        return self._html

    @cached_property
    def _html(self) -> str:
        from commtrace.reports.comparison import notebook

        return notebook.render(self.compared)

    def waterfall(self, *, ax: Axes | None = None) -> Axes:
        """The step of the base, what changed, and the step of the candidate, in ms."""
        from commtrace.plots.waterfall_plot import waterfall
        from commtrace.reports.content.comparison import bars

        return waterfall(bars(self.compared), ax=ax)
