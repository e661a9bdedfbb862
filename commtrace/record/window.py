"""Which steps of a program are profiled, and when: a state that the end of each step moves on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from commtrace.errors import RecordError
from commtrace.record import labels
from commtrace.record.amount import EVENTS, LEAST, StepsBefore, few_communicate
from commtrace.record.communicating import Communicating
from commtrace.record.in_flight import InFlight
from commtrace.record.job import Plan
from commtrace.record.operator_cost import recording_adds_ns
from commtrace.record.own_profiler import OWN
from commtrace.record.profiler import Profiler
from commtrace.record.rank_agreement import Meeting
from commtrace.record.rounds import Rounds
from commtrace.record.trace_file import TraceFile
from commtrace.record.unrecorded import Unrecorded
from commtrace.units import counted

__all__ = ["Window"]

_TAKEN = (
    "the program ran a profiler of its own, whose traces are gone or were never written: let it "
    "export them (on_trace_ready=commtrace.trace_handler(FOLDER)), or switch it off"
)
_ELSEWHERE = (
    "its steps end in a thread that does not live until the window's last, or in several: record "
    "fewer, with --steps, or from an earlier one on, with --start-step"
)
_PATIENT, _PATIENT_S = 4, 2.0  # steps, or as long
_LATER = 3  # steps: so long messages that the last one called may be on their way


class _Stage(Enum):
    WAITING = 0
    WARMING = 1
    RECORDING = 2
    ENDING = 3
    OVER = 4


class Window:
    """The part of a program that is recorded, into one file.

    ``step`` is called when a step has ended. Until the window comes, all is recorded, too,
    for a program that never calls it: ``begin`` starts that, ``pause`` limits it. The file and
    its arguments are ``TraceFile``'s. Outside the window a step costs a few comparisons.
    """

    def __init__(
        self,
        plan: Plan,
        path: Path,
        facts: Mapping[str, Any],
        written: Callable[[Meeting, dict[str, Any]], object] = lambda *_: None,
    ) -> None:
        self._plan, self._file = plan, TraceFile(path, facts, written)
        self._stage = _Stage.WAITING
        self._requested = not plan.on_signal
        self._first = None if plan.on_signal else plan.first
        self._last: int | None = None
        self._ended = 0
        self._before = StepsBefore()
        self._amount = None if plan.seconds else plan.steps
        self._first_end_ns = 0
        self._began = self._until = 0.0
        self._communicating = Communicating()
        self._rounds: Rounds | None = None
        self._whole = Profiler()
        self._profiler = self._whole
        self._step: torch.profiler.record_function | None = None
        self._meeting = Meeting()
        self._in_flight, self._on_their_way = InFlight(), frozenset[int]()
        self._unsaved: str | None = None
        self._recounted_at = 0
        self._unrecorded = Unrecorded()
        self.no_steps_as: str | None = None
        self._had_no_steps = False

    @property
    def waits(self) -> bool:
        """Whether there was no step yet."""
        return self._stage is _Stage.WAITING and not self._ended

    def begin(self) -> None:
        """Record from here on, for want of steps."""
        if self.waits and self._requested:
            self._in_flight.watch()
            self._profiler.prepare()
            self._profiler.start()

    def pause(self) -> None:
        """Record no more, for want of steps: it has been long enough."""
        if self._stage is _Stage.WAITING:
            self._profiler.pause()

    def request(self) -> None:
        """A signal has come; callable from any thread."""
        self._requested = True

    def step(self) -> None:
        """A step has ended."""
        self._ended += 1
        if self._stage is _Stage.OVER:
            self._unrecorded.end()
            return
        self._before.end()
        if self._ended == 1:
            self._first_end_ns = time.time_ns()
        if not self._requested:
            return
        if self._first is None:
            self._first = self._meeting.agree("first step", self._ended + 2)
        if self._ended == self._first - 3:
            self._meeting.announce()
        if self._stage is _Stage.WAITING and self._ended >= self._first - 2:
            self._warm_up()
        if self._stage is _Stage.WARMING and self._ended >= self._first - 1:
            self._start()
        elif self._stage is _Stage.RECORDING:
            self._next()
        elif self._stage is _Stage.ENDING:
            self._end()

    def recount(self) -> None:
        """The program will count its steps itself, and ends its first one now.

        A window that was begun by the steps of an optimizer is none, and its file goes.
        """
        if self._stage is not _Stage.WAITING:
            self._start_again()
        # What was agreed on is over, also for ranks whose optimizers had hardly stepped.
        self._meeting.close()
        self._meeting = Meeting()
        self._first = None if self._plan.on_signal else self._plan.first
        self._ended, self._before = 0, StepsBefore()
        self.step()

    def end_steps(self, why: str) -> None:
        """What ended steps ends none any more; before the window, all is recorded instead."""
        self.no_steps_as = why
        if self._stage is _Stage.WAITING:
            self._ended = 0

    def _start_again(self) -> None:
        self._recounted_at = self._ended
        self._unrecorded = Unrecorded()  # those were an optimizer's
        self._unmark()
        self._profiler.stop()
        self._profiler = self._whole = Profiler()
        self._file.discard()
        self._unsaved = self._last = self._rounds = None
        self._stage = _Stage.WAITING

    def remember(self) -> None:
        """The default group is about to go: keep what only it tells."""
        adopted = OWN.wrote if self._profiler.was_taken else None
        self._file.remember(adopted.began_ns if adopted else self._profiler.began_ns)

    def abandon(self) -> None:
        """This is a forked child now: the window is its parent's."""
        self._unmark()
        self._stage = _Stage.OVER
        self._profiler.drop()
        self._whole.drop()
        self._meeting.close()

    def close(self, error: str | None = None) -> None:
        """The program ends, with an error or not: write what there is.

        Raises RecordError if that is not what was asked for, and there is no error yet.
        """
        if self._stage is _Stage.OVER:
            if self._unsaved and not error:
                raise RecordError(self._unsaved)
            return
        short = self._shortfall()
        is_here = self._profiler.is_of_this_thread
        if self._stage is _Stage.ENDING and is_here:
            self._save(None, over=True)
        elif not self._profiler.was_taken:
            recorded = self._stage is _Stage.RECORDING and (error or self._recorded)
            if not (recorded and is_here):
                self._give_up()
            if self._profiler.has_recorded:
                self._save(error or short, over=True)
        elif OWN.wrote and not short:
            self._file.adopt(OWN.wrote, self._meeting, error)
        self._stage = _Stage.OVER
        if short and not error:
            raise RecordError(short)

    def learned_since(self) -> dict[str, Any]:
        """How long steps took behind the window: ``unrecorded_steps_ns``.

        Of a program that had none: what recording adds to an operator, ``recording_adds_ns``.
        """
        if self._had_no_steps and (adds_ns := recording_adds_ns()):
            return {"recording_adds_ns": adds_ns}
        return self._unrecorded.facts()

    def _give_up(self) -> None:
        """No step of the window comes to its end: what was recorded before has to do."""
        self._unmark()
        self._profiler.stop()
        self._profiler, self._stage = self._whole, _Stage.WAITING

    def _shortfall(self) -> str | None:
        """What is missing from what was asked for."""
        if self._profiler.was_taken:
            return None if OWN.wrote and OWN.wrote.path.exists() else _TAKEN
        if not self._requested:
            return "no signal came to begin the recording: send SIGUSR1, or leave --on-signal out"
        if self.no_steps_as and self._stage is not _Stage.WAITING:
            return (
                f"{self.no_steps_as}, of which the window's first was one: call commtrace.step() "
                "where a step ends, in one thread"
            )
        if not self._profiler.is_of_this_thread:
            return _ELSEWHERE
        if self._stage is _Stage.ENDING:
            return None
        if self._stage is _Stage.RECORDING and self._recorded:
            if self._chooses and self._recorded >= LEAST:
                return None
            return f"the program ended after step {self._ended}, within the window: {self._plan}"
        if self._ended:
            return (
                f"no step reached the window ({self._plan}): the program ended after step "
                f"{self._ended}{' of those it counts' if self._recounted_at else ''}; "
                "choose a lower --start-step"
            )
        return None

    @property
    def _recorded(self) -> int:
        """How many whole steps of the window there are."""
        return self._ended + 1 - self._first if self._first else 0

    @property
    def _patience_s(self) -> float:
        """How long to wait for ranks that have not come to the window's end: some steps."""
        its_step_s = (time.monotonic() - self._began) / max(self._recorded, 1)
        return max(_PATIENT * its_step_s, _PATIENT_S)

    def _warm_up(self) -> None:
        self._in_flight.watch()
        is_needed = self._whole.runs and self._in_flight.now()  # by messages on their way: goes on
        if not is_needed:
            self._whole.stop()
        if self._chooses:
            self._before.events_per_s = self._whole.events_per_s(self._first_end_ns)
            if self._before.seconds is not None:  # so that the first to begin has heard of others
                self._choose()
        if not is_needed:
            self._profiler = Profiler()
            self._profiler.prepare()
        labels.collect()
        # For ranks that have not ended the step before; without one they could not have said so.
        self._meeting.open(None if self._plan.on_signal else self._before.seconds)
        self._meeting.read()
        self._stage = _Stage.WARMING
        if not is_needed:
            self._unrecorded.begin_before()

    @property
    def _chooses(self) -> bool:
        """Whether the user has not said how much to record."""
        return self._plan.steps is None and self._plan.seconds is None

    def _choose(self) -> int:
        """How many steps this rank can keep, or another that can keep fewer."""
        return self._meeting.lower("lowest number of steps", self._before.amount())

    def _start(self) -> None:
        self._unrecorded.end_before()
        if self._chooses:
            self._amount = self._meeting.agree("number of steps", self._choose())
        if not self._profiler.runs:
            self._profiler.start()
        self._first = self._ended + 1
        self._began, self._communicating = time.monotonic(), Communicating()
        if self._plan.seconds is not None:
            self._until = self._began + self._plan.seconds
        else:
            self._last = self._ended + (self._amount or LEAST)
        self._stage = _Stage.RECORDING
        self._mark()

    def _next(self) -> None:
        self._unmark()
        self._communicating.end()
        self._profiler.extras.step(self._ended)
        self._whole = self._profiler  # there is a step of the window: nobody wants what was before
        if (
            self._plan.seconds is not None
            and self._last is None
            and time.monotonic() >= self._until
        ):
            self._last = self._meeting.agree("last step", self._ended)
        if self._profiler.was_taken:
            return
        if self._chooses and self._ended == self._last:
            self._lengthen()
        if not self._is_over():
            self._mark()
            return
        self._last = self._ended
        if on_their_way := self._in_flight.now():
            self._on_their_way = on_their_way
            self._profiler.pause()
            self._meeting.read(self._patience_s)  # now, as do ranks of which nothing is on its way
            self._meeting.close()
            self._stage = _Stage.ENDING
        else:
            self._finish()

    def _lengthen(self) -> None:
        """Go on where few of the window's steps communicate."""
        if few_communicate(self._recorded, self._communicating.steps):
            events_per_s = self._before.events_per_s or 0.0
            its = (self._meeting, self._communicating, self._began, events_per_s)
            self._rounds, self._last = Rounds(*its), None

    def _is_over(self) -> bool:
        if self._rounds is not None:
            return self._rounds.are_over(self._recorded)
        return self._last is not None and self._ended >= self._last

    def _end(self) -> None:
        """The window is over: wait for the messages that its steps called."""
        late = self._on_their_way & self._in_flight.now()
        if not late or self._ended >= (self._last or 0) + _LATER:
            self._finish()

    def _finish(self) -> None:
        """Write the window."""
        try:
            self._save(None, over=False)
        except RecordError as error:  # not the program's: it goes on
            self._unsaved = str(error)
        self._unrecorded.begin()

    def _mark(self) -> None:
        if self._profiler.was_taken:  # their steps are not ours
            return
        self._step = torch.profiler.record_function(f"ProfilerStep#{self._ended + 1}")
        self._step.__enter__()

    def _unmark(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def _save(self, why_partial: str | None, *, over: bool) -> None:
        whole = self._stage not in (_Stage.RECORDING, _Stage.ENDING)
        self._unmark()
        if not why_partial:
            # While all are here: what was recorded takes one rank seconds longer to gather.
            self._profiler.pause()
            self._meeting.read(self._patience_s)
        self._profiler.stop()
        self._in_flight.ignore()
        self._stage = _Stage.OVER
        if not self._profiler.has_recorded:
            self._meeting.close()
            raise RecordError(_ELSEWHERE)
        last = self._ended if self._last is None else min(self._ended, self._last)
        steps = None if whole else [self._first, last]
        self._had_no_steps = whole and not self._ended
        notes = self._notes()
        self._file.save(self._profiler, self._meeting, steps, notes, why_partial, over=over)

    def _on_amount(self, last: int) -> Iterator[str]:
        """Why there are fewer steps than the default."""
        if self._ended < last:
            yield f"the program ended after step {self._ended}, before the window's last, {last}"
        recorded = last + 1 - (self._first or 0)
        if self._amount and recorded < LEAST:
            yield (
                f"{counted(recorded, 'step')} recorded, not {LEAST}: "
                f"more would have left over {EVENTS:,} events"
            )

    def _notes(self) -> list[str]:
        notes = []
        if self._had_no_steps:
            length = f"its first {self._profiler.recorded_s:.1f} s"
            if self.no_steps_as:
                what = f"{self.no_steps_as}, and commtrace.step() was never called"
            else:
                what = "no optimizer's step and no commtrace.step() was recorded"
            notes.append(f"{what}: recorded whole, {length}")
        if self._recounted_at:
            before = f"{counted(self._recounted_at, 'step')} of its optimizer"
            notes.append(f"the program counts its own steps; the first ended after {before}")
        if self._chooses and self._last is not None:
            notes += self._on_amount(self._last)
        return notes
