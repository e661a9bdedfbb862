"""What the launcher hands to every rank."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from commtrace.record import conceal
from commtrace.record.amount import LEAST, MOST, WITHIN_S
from commtrace.record.workloads import Value
from commtrace.units import counted

__all__ = ["Backend", "Job", "Plan", "Program", "ranks_share_devices"]

Backend = Literal["gloo", "nccl"]


def ranks_share_devices() -> bool:
    """Whether NCCL, from 2.30 on, is asked to take several ranks on one device."""
    return os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"


@dataclass(frozen=True)
class Job:
    """One recording of a workload: which, how, and into which folder."""

    workload: str
    path: str
    settings: Mapping[str, Value]
    iterations: int
    warmup: int
    backend: Backend
    folder: str
    timeout_s: float

    def to_json(self) -> str:
        """As one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """From what :meth:`to_json` made."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Plan:
    """Which steps to record: ``steps`` from the ``first`` (1 is the program's first step) on.

    With ``seconds`` as many as begin within them, with neither what ``amount`` says; with
    ``on_signal`` from the one that follows a signal on.
    """

    first: int = 5
    steps: int | None = None
    seconds: float | None = None
    on_signal: bool = False

    def __str__(self) -> str:
        if self.seconds:
            length = f"{self.seconds:g} s"
        elif self.steps:
            length = counted(self.steps, "step")
        else:
            length = f"{LEAST} to {MOST} steps within {WITHIN_S:g} s"
        return f"{length} {'after a signal' if self.on_signal else f'from step {self.first} on'}"


@dataclass(frozen=True)
class Program:
    """One recording of a program: a script's path, or a module's name, and its arguments.

    ``launched`` by commtrace, or by another launcher before it.
    """

    name: str
    is_module: bool
    arguments: list[str]
    plan: Plan
    folder: str
    timeout_s: float
    launched: bool = True

    def described(self) -> dict[str, Any]:
        """As it stands in traces and manifests: a script without its folder."""
        name = {"module": self.name} if self.is_module else {"script": Path(self.name).name}
        return {**name, "arguments": conceal.arguments(self.arguments)}

    def to_json(self) -> str:
        """As one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Program:
        """From what :meth:`to_json` made."""
        fields = json.loads(text)
        return cls(**{**fields, "plan": Plan(**fields["plan"])})
