"""The gate: whether a change may go in."""

from __future__ import annotations

from dataclasses import dataclass

from commtrace.comparing.compared import Compared

__all__ = ["Gate"]


@dataclass(frozen=True)
class Gate:
    """Fails what is surely slower by more than ``pct`` percent; None fails nothing.

    With ``strict`` what is inconclusive fails, too.
    """

    pct: float | None = None
    strict: bool = False

    def failed(self, compared: Compared) -> str | None:
        """Why it fails; None if it does not."""
        low = compared.step.low_pct
        if self.pct is not None and low is not None and low > self.pct:
            return f"slower by at least {low:.1f} %, more than the gate's {self.pct:g} %"
        if self.strict and compared.verdict == "inconclusive":
            return f"inconclusive: {compared.why}"
        return None
