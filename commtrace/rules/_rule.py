"""The form of a rule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from commtrace.diagnosis import Finding
    from commtrace.measures import Measures

__all__ = ["Rule"]


@dataclass(frozen=True)
class Rule(ABC):
    """One diagnosis. Fields are thresholds, each with a default and its unit in its name.

    ``explains`` names the rules whose findings are, at the same time and place, symptoms
    of this one, and ``same`` those that are only where they speak of the very same events;
    ``good_news`` marks a rule that reports no fault.
    """

    explains: ClassVar[tuple[str, ...]] = ()
    same: ClassVar[tuple[str, ...]] = ()
    good_news: ClassVar[bool] = False

    @classmethod
    def name(cls) -> str:
        """The rule's name: its file's, in kebab-case."""
        return cls.__module__.rpartition(".")[2].replace("_", "-")

    @abstractmethod
    def check(self, run: Measures) -> Iterator[Finding]:
        """Yield what is wrong. Raises CannotLook where the trace does not tell."""

    @staticmethod
    @abstractmethod
    def bad() -> Measures:
        """A tiny trace that has the fault."""

    @staticmethod
    @abstractmethod
    def good() -> Measures:
        """Its nearest neighbour that does not."""
