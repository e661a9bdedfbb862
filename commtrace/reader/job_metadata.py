"""What a trace's top level tells of the job: rank, world, groups, flight recorder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from commtrace.machine import Machine
from commtrace.reader.json.events import Scan
from commtrace.reader.json.metadata import quoted
from commtrace.reader.operations.flight_recorder import FlightRecorder
from commtrace.reader.operations.groups import Groups
from commtrace.trace_tables import WAITED

__all__ = ["JobMetadata"]


class JobMetadata(Struct, frozen=True):
    """The job as one file knows it; None if unknown.

    ``distributedInfo`` is PyTorch's, ``commtrace`` the recorder's, with its ``probes`` of the
    rank's clock, the ``first_step`` and ``last_step`` that it recorded, what the process saw of its
    ``machine``, and, in ``partial``, why there is no more; ``waited`` are its notes that it held
    the rank up. ``gpu`` is the model of the GPUs that it saw.
    ``unusable`` lists what they tell that cannot be.
    """

    file: str
    rank: int | None
    world_size: int | None
    backend: str | None
    host: str | None
    gpu: str | None
    group_list: Any
    flight_dump: Any
    probes: tuple[Mapping[str, int], ...] = ()
    unusable: tuple[str, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    partial: str | None = None
    machine: Machine | None = None
    waited: tuple[str, ...] = ()

    @classmethod
    def of(cls, scan: Scan) -> JobMetadata:
        """Read a file's metadata, trusting no type in it."""
        torch, ours = (_section(scan.metadata, key) for key in ("distributedInfo", "commtrace"))
        probed = ours.get("clock_probe")
        probes = probed if isinstance(probed, list) else []
        said = ours.get("machine")
        machine = Machine.of(said)
        odd = [probe for probe in probes if not _is_probe(probe)]
        return cls(
            file=scan.file,
            rank=_count(None if _is_guessed(torch) else torch.get("rank"), ours.get("rank")),
            world_size=_count(torch.get("world_size"), ours.get("world_size")),
            probes=tuple(probe for probe in probes if _is_probe(probe)),
            unusable=tuple(
                f"{key} is {quoted(section[key])}"
                for section in (torch, ours)
                for key in ("rank", "world_size")
                if section.get(key) is not None and _count(section[key]) is None
            )
            + ((f"clock_probe has {len(odd):,} like {quoted(odd[0])}",) if odd else ())
            + ((f"machine is {quoted(said)}",) if said is not None and machine is None else ()),
            backend=_backend(_text(torch.get("backend"), ours.get("backend"))),
            host=_text(scan.metadata.get("host_name"), ours.get("host")),
            gpu=_model(scan.metadata.get("deviceProperties")),
            # The recorder's list also has the groups made while it recorded.
            group_list=ours.get("groups") or torch.get("pg_config"),
            flight_dump=ours.get("flight_recorder") or scan.metadata.get("flight_recorder"),
            first_step=_step(ours.get("steps"), 0),
            last_step=_step(ours.get("steps"), 1),
            partial=_text(ours.get("partial")),
            machine=machine,
            waited=_waited(ours.get("notes")),
        )

    def identity(self, otherwise: tuple[int, str]) -> tuple[int, str]:
        """The rank, and where it is known from: `metadata`, or as given by ``otherwise``."""
        return otherwise if self.rank is None else (self.rank, "metadata")

    def groups(self, rank: int) -> Groups:
        """The groups that the metadata lists."""
        return Groups(self.group_list, self.world_size, rank)

    def flight(self) -> FlightRecorder:
        """The operations that the flight recorder noted."""
        return FlightRecorder(self.flight_dump)


def _section(metadata: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = metadata.get(key)
    return value if isinstance(value, Mapping) else {}


def _is_guessed(info: Mapping[str, Any]) -> bool:
    """Whether Kineto wrote it, of a job whose group was made behind the profiler's start.

    It takes the first operation's "Rank" for the rank, which is the root's in a broadcast, and
    knows no version of NCCL: PyTorch writes that, or no such field for other backends.
    """
    return info.get("nccl_version") in ("unknown", "")


_MOST_RANKS = 2**20  # beyond any job: a number larger than this is damage
_LATEST_NS = 2**62


def _count(*values: Any) -> int | None:
    return next((v for v in values if type(v) is int and 0 <= v < _MOST_RANKS), None)


def _step(steps: Any, which: int) -> int | None:
    return _count(steps[which]) if isinstance(steps, list) and len(steps) == 2 else None


def _waited(notes: Any) -> tuple[str, ...]:
    texts = [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []
    return tuple(text for text in texts if text.startswith(WAITED))


def _is_probe(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return False
    numbers = [value.get(key) for key in ("at_ns", "offset_ns", "error_ns")]
    return all(type(v) is int and abs(v) < _LATEST_NS for v in numbers) and value["error_ns"] >= 0


def _model(devices: Any) -> str | None:
    """The name that all devices have."""
    named = devices if isinstance(devices, list) else []
    names = {_text(its.get("name")) if isinstance(its, Mapping) else None for its in named}
    return names.pop() if len(names) == 1 else None


def _backend(name: str | None) -> str | None:
    """None of torch's own word where each type of device has its backend: groups say which."""
    return None if name == "undefined" else name


def _text(*values: Any) -> str | None:
    return next((v for v in values if isinstance(v, str) and v), None)
