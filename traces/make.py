"""Record the traces of this folder again: ``python traces/make.py [NAME…]``.

Each recording is made by ``commtrace record``'s own code, slimmed, and put beside what the
workload's code says must be in it.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import reconstruct_p2p
from expected import expected
from slim import slim_folder

from commtrace.record.launch import record

HERE = Path(__file__).parent
WORLD_SIZE = 4


@dataclass(frozen=True)
class Recording:
    """One folder: a workload, what is set, and what tells it from the workload's others."""

    workload: str
    settings: dict[str, str] = field(default_factory=dict)
    variant: str = ""

    @property
    def folder(self) -> Path:
        """Where it is kept."""
        return HERE / self.workload / f"gloo-{WORLD_SIZE}{self.variant}"


OPERATIONS = (
    *("broadcast", "reduce", "all_reduce", "scatter", "gather", "all_gather", "reduce_scatter"),
    *("all_to_all", "barrier", "send_recv", "isend_irecv"),
)
RECORDINGS = (
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


def make(recording: Recording) -> None:
    """Record, slim, and replace the folder only when that went well."""
    with tempfile.TemporaryDirectory() as scratch:
        made = record(
            recording.workload,
            settings=recording.settings,
            world_size=WORLD_SIZE,
            backend="gloo",
            out=Path(scratch, "recording"),
        )
        slim_folder(made)
        manifest = json.loads((made / "manifest.json").read_text("utf-8"))
        (made / "expected.json").write_text(_text(expected(manifest)), "utf-8")
        shutil.rmtree(recording.folder, ignore_errors=True)
        shutil.copytree(made, recording.folder)


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
    """Make the recordings of these workloads, or all."""
    for recording in RECORDINGS:
        if not names or recording.workload in names:
            print(recording.folder.relative_to(HERE), flush=True)
            make(recording)
    if not names or "p2p_copies" in names:
        reconstruct_p2p.main()


if __name__ == "__main__":
    main(sys.argv[1:])
