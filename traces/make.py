"""Record the traces of this folder again: ``python traces/make.py [NAME…]``.

Each recording is made by ``commtrace record``'s own code, slimmed, and put beside what the
workload's code says must be in it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import reconstruct_copies
import reconstruct_p2p
from expected import expected
from slim import slim_folder

from commtrace.record import record_program
from commtrace.record.launch import cuda_devices, record

HERE = Path(__file__).parent
WORLD_SIZE = 4


@dataclass(frozen=True)
class Recording:
    """One folder: a workload, what is set, and what tells it from the workload's others."""

    workload: str
    settings: dict[str, str] = field(default_factory=dict)
    variant: str = ""
    backend: Literal["gloo", "nccl"] = "gloo"

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return HERE / self.workload / f"{self.backend}-{WORLD_SIZE}{self.variant}"


@dataclass(frozen=True)
class Program:
    """A program's arguments, and what the first finding must be; None for no such one."""

    arguments: tuple[str, ...]
    first_finding: dict[str, Any] | None


OPERATIONS = (
    *("broadcast", "reduce", "all_reduce", "scatter", "gather", "all_gather", "reduce_scatter"),
    *("all_to_all", "barrier", "send_recv", "isend_irecv"),
)
KEPT = ("iterations", "variant", "delay_ms")  # a GPU need not be spared otherwise
ON_CPUS = (
    *(Recording(name) for name in OPERATIONS),
    Recording("decomposed_all_reduce", {"iterations": "10"}),
    Recording(
        "decomposed_all_reduce",
        {"iterations": "10", "variant": "full_output"},
        variant="-full-output",
    ),
    Recording("broadcast_precision", {"iterations": "10"}),
    Recording("cold_start"),
    Recording("overlap", {"iterations": "10", "elements": "1000000", "products": "2"}),
    Recording("straggler", {"iterations": "12", "delay_ms": "10"}),
    Recording("pipeline", {"width": "256", "micro_batches": "4"}),
    Recording("ddp_training", {"width": "256", "layers": "4", "bucket_mb": "0.5"}),
)
ON_GPUS = tuple(
    replace(its, backend="nccl", settings={k: v for k, v in its.settings.items() if k in KEPT})
    for its in ON_CPUS
)
RECORDINGS = (*ON_CPUS, *ON_GPUS)

PROGRAMS = {
    "slow_ddp": {
        "before": Program((), {"rule": "straggler", "ranks": [0], "cause": "checkpoint"}),
        "after": Program(("--save-every", "20"), None),
    }
}
RECONSTRUCTIONS = {
    "p2p_copies": reconstruct_p2p.main,
    "host_device_copies": reconstruct_copies.main,
}


def make(recording: Recording) -> None:
    """Record, slim, and replace the folder only when that went well."""
    with tempfile.TemporaryDirectory() as scratch:
        made = record(
            recording.workload,
            settings=recording.settings,
            world_size=WORLD_SIZE,
            backend=recording.backend,
            out=Path(scratch, "recording"),
        )
        slim_folder(made)
        manifest = json.loads((made / "manifest.json").read_text("utf-8"))
        (made / "expected.json").write_text(_text(expected(manifest)), "utf-8")
        shutil.rmtree(recording.folder, ignore_errors=True)
        shutil.copytree(made, recording.folder)


def make_program(name: str) -> None:
    """Record a program of examples/ before and after its fix."""
    for side, its in PROGRAMS[name].items():
        folder = HERE / name / side
        with tempfile.TemporaryDirectory() as scratch:
            command = [str(HERE.parent / "examples" / f"{name}.py"), *its.arguments]
            made = record_program(command, world_size=2, out=Path(scratch, "recording"))
            slim_folder(made)
            truth = {"program": name, "first_finding": its.first_finding}
            (made / "expected.json").write_text(json.dumps(truth, indent=2) + "\n", "utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(made, folder, ignore=shutil.ignore_patterns("*.log"))


def _text(truth: dict[str, object]) -> str:
    """JSON, with one call per line."""
    calls = truth["calls_per_step"]
    assert isinstance(calls, dict)
    ranks = ",\n".join(
        f"    {json.dumps(rank)}: [\n"
        + ",\n".join(f"      {json.dumps(call)}" for call in listed)
        + "\n    ]"
        for rank, listed in calls.items()
    )
    head = json.dumps({key: truth[key] for key in ("workload", "steps")})[1:-1]
    return f'{{\n  {head},\n  "calls_per_step": {{\n{ranks}\n  }}\n}}\n'


def main(names: list[str]) -> None:
    """Make the recordings of these workloads, or all; without a GPU those of NCCL stay."""
    for recording in RECORDINGS if cuda_devices() else ON_CPUS:
        if not names or recording.workload in names:
            print(recording.folder.relative_to(HERE), flush=True)
            make(recording)
    for name in PROGRAMS:
        if not names or name in names:
            make_program(name)
    for name, reconstruction in RECONSTRUCTIONS.items():
        if not names or name in names:
            reconstruction()


if __name__ == "__main__":
    main(sys.argv[1:])
