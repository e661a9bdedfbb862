"""``commtrace record``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from commtrace.cli.light_command import LightCommand, TyperError
from commtrace.cli.streams import fail, say, tell
from commtrace.errors import UsageError

__all__ = ["Backend", "RecordCommand", "record"]


class Backend(str, Enum):
    """What communicates."""

    gloo = "gloo"
    nccl = "nccl"


def _workloads() -> list[str]:
    from commtrace.record.workloads import available

    return [workload.name for workload in available()]


class RecordCommand(LightCommand):
    """What stands behind ``--`` is a program and its arguments, and none of ours."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:  # noqa: ARG002 - as click calls it
        """One of two ways to say what is recorded."""
        return ["[OPTIONS]", "(WORKLOAD | -- PROGRAM ARGS…)"]

    def parse_args(self, context: Any, arguments: list[str]) -> list[str]:
        """Keep the program in the context."""
        if "--" in arguments:
            mark = arguments.index("--")
            context.obj = arguments[mark + 1 :]
            arguments = arguments[:mark]
        several = len(arguments) > 1
        try:
            return super().parse_args(context, arguments)
        except TyperError as error:
            if several and context.obj is None:
                error.message += "; a program and its arguments stand behind --"
            raise


def record(
    context: typer.Context,
    workload: Annotated[
        str | None,
        typer.Argument(
            metavar="WORKLOAD",
            autocompletion=_workloads,
            help="One that `commtrace workloads` lists, or a Python file.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set one of the workload's settings; repeat it for several; default: what "
            "`commtrace workloads` shows.",
        ),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--world-size",
            min=1,
            metavar="N",
            help="Ranks to start on this node; default: the workload's own number, else one per "
            "GPU, else 4 (1 for a program).",
        ),
    ] = None,
    backend: Annotated[
        Backend | None,
        typer.Option(
            metavar="[gloo|nccl]",
            help="What a workload communicates with; default: nccl with a GPU for each rank, "
            "else gloo.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FOLDER",
            help="Write the traces there; default: traces/WORKLOAD/BACKEND-N, or traces/PROGRAM/N.",
        ),
    ] = None,
    start_step: Annotated[
        int | None,
        typer.Option(metavar="N", help="The first step of a program to record; default: 5."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="How many steps of a program to record; default: as fit into 10 s, 3 to 8.",
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Record the steps that begin within so many seconds; default: --steps decides.",
        ),
    ] = None,
    on_signal: Annotated[
        bool,
        typer.Option(
            "--on-signal",
            help="Begin with the step after a SIGUSR1; default: with --start-step.",
        ),
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Seconds in one operation after which a rank counts as hung; default: 1800 for "
            "a program, 60 for a workload.",
        ),
    ] = None,
    nnodes: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many nodes record together.")
    ] = 1,
    node_rank: Annotated[
        int, typer.Option(min=0, metavar="N", help="Which of the nodes this is, from 0.")
    ] = 0,
    rdzv_endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where node 0 listens; needed with --nnodes; default: none, for one node.",
        ),
    ] = None,
) -> None:
    """Record a workload, or a program of your own, on every rank.

    Writes a trace per rank, and a manifest. A program runs to its end as under torchrun, and some
    of its steps are profiled: a step ends when its first optimizer steps, or where it calls
    commtrace.step().
    """
    chosen = dict(map(_setting, settings or ()))
    window = {
        "--start-step": start_step,
        "--steps": steps,
        "--seconds": seconds,
        "--on-signal": on_signal or None,
    }
    _same_kind(context.obj, workload, window, {"--set": settings, "--backend": backend})
    from commtrace import record as recorder

    common: dict[str, Any] = {
        "world_size": world_size,
        "out": output,
        "place": recorder.Place.of(nnodes, node_rank, rdzv_endpoint),
        **({} if timeout is None else {"timeout_s": timeout}),
    }
    try:
        if workload is None:
            given = {"first": start_step, "steps": steps}
            plan = recorder.Plan(
                seconds=seconds,
                on_signal=on_signal,
                **{name: value for name, value in given.items() if value is not None},
            )
            folder = recorder.record_program(context.obj, plan=plan, tell=tell, **common)
        else:
            folder = recorder.record(
                workload, settings=chosen, backend=backend and backend.value, **common
            )
    except recorder.Interrupted as stop:
        fail(str(stop))
        raise typer.Exit(stop.status) from None
    say(f"{folder}\n")
    tell(f"Now: commtrace analyze {shlex.quote(str(folder))}")


def _same_kind(
    program: Sequence[str] | None,
    workload: str | None,
    of_programs: Mapping[str, object],
    of_workloads: Mapping[str, object],
) -> None:
    if (program is None) == (workload is None):
        raise UsageError("name a workload, or a program behind --: commtrace record -- train.py")
    wrong = of_programs if program is None else of_workloads
    given = [name for name, value in wrong.items() if value]
    if given:
        kind = "a program behind --" if program is None else "a workload"
        raise UsageError(f"{given[0]} is for {kind}")


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"--set {text}: write it as KEY=VALUE")
    return key, value
