"""What the launcher hands to every rank."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from commtrace.record.workloads import Value

__all__ = ["Backend", "Job"]

Backend = Literal["gloo", "nccl"]


@dataclass(frozen=True)
class Job:
    """One recording: which workload, how, and into which folder."""

    workload: str
    path: str
    settings: Mapping[str, Value]
    iterations: int
    warmup: int
    backend: Backend
    world_size: int
    folder: str

    def to_json(self) -> str:
        """As one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """From what :meth:`to_json` made."""
        return cls(**json.loads(text))
