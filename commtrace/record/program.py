"""Starts a program's ranks as torchrun would, or becomes one of them, and records its window."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which

from commtrace.errors import UsageError
from commtrace.record import external, without
from commtrace.record.environment import cuda_devices
from commtrace.record.folder import new_folder
from commtrace.record.job import Plan, Program
from commtrace.record.nodes import Place
from commtrace.record.session import Session

__all__ = ["TIMEOUT_S", "record_program"]

TIMEOUT_S = 1800.0
"""After this long in one operation a program's rank has hung. gloo itself waits as long."""


def record_program(
    command: Sequence[str],
    *,
    plan: Plan | None = None,
    world_size: int | None = None,
    out: Path | None = None,
    timeout_s: float = TIMEOUT_S,
    place: Place | None = None,
    tell: Callable[[str], object] | None = None,
) -> Path:
    """Record a program: ``["train.py", "--lr", "1"]`` or ``["-m", "package.train"]``.

    One process per rank, as many as there are CUDA devices (else one) unless ``world_size``
    says otherwise, with torchrun's environment; a trace file for each, and a manifest. The
    program runs to its end; ``plan`` says which part is recorded. ``tell`` is given lines for
    the user, and then what the first rank prints goes to stderr, too. Returns the folder.

    Where torchrun or Slurm has started this process already, it becomes that rank instead,
    and does not return.

    Raises UsageError before anything is started; RecordError, which names the rank, when one
    fails, hangs or does not reach the window: what there is is kept, marked as partial.
    Interrupted by Ctrl-C and SIGTERM.
    """
    chosen, where = plan or Plan(), place or Place()
    _check(chosen)
    without.check()
    name, is_module, arguments = _read(command)
    devices = cuda_devices()
    label = Path(name).stem if not is_module else name
    started = external.rank(world_size, is_node=where != Place())
    if chosen.on_signal and (started or where.nodes > 1):
        raise UsageError(
            "--on-signal: only on one node whose ranks commtrace starts; "
            "use --start-step or --seconds"
        )
    if started:
        folder = external.folder(started, out)
    else:
        ranks = world_size or devices or 1
        new = new_folder(out, Path("traces", label, where.subfolder(str(ranks))))
        folder = new.path
    program = Program(
        name, is_module, arguments, chosen, str(folder.resolve()), timeout_s, launched=not started
    )
    argv = (sys.executable, "-u", "-m", "commtrace.record.runner", program.to_json())
    if started:
        os.execve(sys.executable, argv, started)
    Session(
        command=argv,
        folder=new,
        ranks=ranks,
        what={"program": program.described(), "window": str(chosen)},
        backend=None,
        place=where,
        timeout_s=timeout_s,
        grace_s=timeout_s,
        tell=tell,
        on_signal=chosen.on_signal,
    ).run()
    return folder


def _check(plan: Plan) -> None:
    if plan.first < 2:
        raise UsageError(
            f"--start-step {plan.first}: at least 2: where the first step begins is unknown"
        )
    if plan.steps is not None and plan.steps < 1:
        raise UsageError(f"--steps {plan.steps}: at least 1")
    if plan.seconds is not None and not plan.seconds > 0:
        raise UsageError(f"--seconds {plan.seconds:g}: more than 0")


def _read(command: Sequence[str]) -> tuple[str, bool, list[str]]:
    """A script or a module, and its arguments."""
    words = list(command)
    if words[:1] == ["python"] or words[:1] == ["python3"]:
        words = words[1:]
    if words[:1] == ["-m"]:
        if len(words) < 2:
            raise UsageError("-- -m: name a module behind it")
        if not _is_here(words[1].partition(".")[0]):
            raise UsageError(f"-- -m {words[1]}: no such module here")
        return words[1], True, words[2:]
    if not words:
        raise UsageError("--: name a script behind it: commtrace record -- train.py")
    if not Path(words[0]).is_file():
        why = _why_not(words[0])
        raise UsageError(f"{words[0]}: {why}; name a Python script, or -m and a module")
    return words[0], False, words[1:]


def _why_not(word: str) -> str:
    if which(word) is None:
        return "no such file"
    return "a command, no script: -n starts the ranks, or let it start commtrace record on each"


def _is_here(module: str) -> bool:
    """Whether ``python -m`` would find a module that is in no package, or might."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return find_spec(module) is not None
    except ValueError:  # one like __main__: the rank says what is wrong with it
        return True
    finally:
        sys.path.pop(0)
