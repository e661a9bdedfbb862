"""Communication that nobody needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from commtrace.arrays import NULL, Bool, Int64, codes, distinct
from commtrace.causal.edits.not_issued import not_issued, not_waited_in
from commtrace.causal.edits.object_edits import (
    as_tensors,
    idling_less,
    states_as_tensors,
    without_objects,
)
from commtrace.causal.edits.on_shards import on_shards
from commtrace.causal.edits.own_pace import at_own_pace
from commtrace.causal.edits.run_edits import as_measured, saved_by
from commtrace.causal.replay.graph import Lags, changes
from commtrace.causal.run.replayable import need_replay
from commtrace.causal.run.run_graph import run_graph
from commtrace.causal.savings import mended_lags, of_unrecorded
from commtrace.comms import POINT_TO_POINT
from commtrace.diagnosis import Evidence, Finding
from commtrace.metrics.run.accumulation import of_another_pass, repeated_in_accumulation
from commtrace.metrics.run.averaged_again import averaged_again, averaged_in_other_pieces
from commtrace.metrics.run.cut_gathers import gathers_of_layers
from commtrace.metrics.run.debug_checks import debug_checks, least_ns
from commtrace.metrics.run.frozen_gathers import gathers_of_frozen
from commtrace.metrics.run.gathered_into import gathered_into
from commtrace.metrics.run.gradients import Placed, between_updates, placed
from commtrace.metrics.run.group_dimensions import between_layers
from commtrace.metrics.run.known_already import sent_again, sent_always
from commtrace.metrics.run.module_buffers import of_buffers
from commtrace.metrics.run.new_groups import firsts_of_new_groups
from commtrace.metrics.run.objects_in_steps import (
    exchanged_objects,
    messages_of_objects,
    same_objects,
    sent_states,
)
from commtrace.metrics.run.reduced_by_hand import placed_by_hand
from commtrace.metrics.run.regathers import gathered_whole, regathered
from commtrace.metrics.run.repeats import barriers_at_messages, needless_barriers, reduced_twice
from commtrace.metrics.run.sequences import sequences
from commtrace.metrics.run.serving import serves
from commtrace.metrics.run.unmarked_passes import placed_by_threads
from commtrace.metrics.run.whole import of_time, share_pct, worth_reporting
from commtrace.rules import _needless
from commtrace.rules._rule import Rule
from commtrace.synthetic import BASE_NS, Tiny
from commtrace.table import Rows
from commtrace.units import counted, ms

if TYPE_CHECKING:
    from commtrace.measures import Measures


class Redundant(Rule, frozen=True):
    """Communication that nobody needs.

    What it detects
        Twenty-two kinds, each if it takes ``min_step_share`` of the steps. Reductions of gradients
        after every micro-batch, by DDP, FSDP, or the program itself right behind each backward
        pass, though the last of the accumulation reduces the same sizes again. Gradients that a
        pass reduces for another model's optimizer, whose own pass reduces the same sizes and
        nothing else. The checks before each collective at PyTorch's debug level DETAIL. Barriers
        right before or after a collective of their group that holds the ranks together anyway, or
        of which each rank sends or receives a message before or after. An all_reduce of the same
        bytes over a group whose members all took part in one right before, with nothing in between.
        Broadcasts with which DDP makes its module's buffers alike before each forward pass.
        All_reduces behind DDP's own, of as many bytes, or elements of any float types: gradients
        that DDP has averaged, or parameters, which follow from these; without DDP those of as many
        elements as all before them in their step, in other pieces. Broadcasts of one root that
        send in a step as many elements as its all_reduces summed, though every rank can compute the
        same parameters of the same gradients; not where the root works longer than the others
        between the two. Broadcasts of one root, of the same three sizes or more in every step of a
        group that averages gradients, where the root gets nothing that the others do not, nor works
        longer before. All_gathers of as many elements as FSDP reduce_scatters, three for each such
        or more: parameters that no update has changed since the last. All_gathers in forward and
        backward, many each, of ten times as many elements as a rank reduces in all: parameters of a
        frozen model, whose adapters alone are trained. All_gathers of the same sizes in forward and
        backward of a group that sums activations in both and scatters nothing: what a layer of
        tensor parallelism gathers and the next one cuts; and such a group's behind backward: whole
        parameters or gradients. All_gathers of other sizes in
        the same group that hold in a step as many elements as it reduce_scatters, or half as many
        in the type of the reductions, which FSDP's units are not gathered in: whole parameters or
        gradients, one by one; not beside an inference engine's kernels. Objects that one rank sends
        (``broadcast_object_list``), as large in every step, unless it is busy before for much
        longer than the others are behind. Objects that all exchange in every step
        (``all_gather_object``, ``gather_object``), or one broadcasts, four times or more in each
        (a model's tensors one by one), or one sends another in several
        (``send_object_list``), or ten times in a run without steps, for what pickles them and tells
        their lengths.
        All_gathers of 4 MB or more that a softmax, a loss or a metric (argmax, top k, bincount)
        works on as they are: logits, of which ranks can compute that of what each has; or of which
        a norm is taken before all else. Groups that
        only one step uses each, in most steps: ``new_group`` in the loop.

    Why it costs time
        The bytes cross the links once more for a result that is thrown away, or known.

    What to do
        Accumulate under ``no_sync()`` (all but the last micro-batch), with FSDP2 after
        ``set_requires_gradient_sync(False)``, which keeps whole gradients in memory; leave out the
        barrier; reduce over the larger group once; construct DDP with
        ``broadcast_buffers=False``; send parameters, and objects that do not change, once, before
        the first step; keep what is gathered, if it fits in memory, until the last micro-batch. The
        potential saving is that of the run replayed without them.

    Blind spots
        Meaning is not in a trace. Micro-batches are known from DDP's and FSDP2's own annotations,
        or, on GPUs where an optimizer says when it steps, from the threads that launch forward and
        backward passes. A barrier may order files or prints. That two all_reduces work on one
        tensor follows from size, type and order, not from addresses; within one group it could as
        well be two buckets, so that only another group, of some or all of the ranks, counts.
        Whether buffers differ between ranks, as BatchNorm's do, and whether that matters. What DDP
        copies into and out of its buckets, unless ``gradient_as_bucket_view``, is saved as well,
        but not counted.
    """

    explains: ClassVar[tuple[str, ...]] = ("exposed-communication", "jitter", "launch-gap")
    moots: ClassVar[tuple[str, ...]] = ("latency-bound", "byte-inflation", "full-precision-payload")

    min_step_share: float = 0.02

    def check(self, run: Measures) -> Iterator[Finding]:
        """One finding per kind, of all groups: what siblings leave out together saves time."""
        if not len(run.rows("collectives")):
            return
        checks = debug_checks(run)
        if worth_reporting(least_ns(checks), run, self.min_step_share):
            count = int(np.bincount(codes(checks.ints("rank"))).max())
            yield self._finding(run, _needless.CHECKS, checks, count, least_ns(checks))
        rows = sequences(run, barriers=True)
        gradients, again = placed(run, rows), sent_again(run, rows)
        of_passes = gradients if gradients.row.size else between_updates(run, rows)
        every, reduces = rows, gradients
        if _unsized(run):
            every = sequences(run, barriers=True, unsized=True)
            reduces = placed(run, every)
        repeated, barriers = _repeated(run, rows, every, reduces), needless_barriers(every)
        by_hand = rows.take(slice(0))
        if not len(repeated) and not reduces.row.size:
            by_hand = repeated_in_accumulation(rows, placed_by_hand(run, rows))
        same, (logits, norms) = same_objects(rows), gathered_into(run, rows)
        of_layers = gathers_of_layers(run, rows)
        # An engine that generates in the same processes is handed whole parameters; what layers
        # gather and scatter along a sequence are activations.
        whole = gathered_whole(rows) & ~logits & (not serves(run))
        whole &= ~between_layers(run, rows.coded("communicator"))
        for say, found in (
            (_needless.accumulated, repeated),
            (_needless.accumulated_by_hand, by_hand),
            (_needless.of_another, rows.take(of_another_pass(rows, of_passes))),
            (_needless.barrier, barriers),
            (_needless.at_messages, barriers_at_messages(run, every, barriers)),
            (_needless.twice, reduced_twice(run, rows)),
            (_needless.buffers, rows.take(of_buffers(run, rows))),
            (_needless.averaged_again, rows.take(averaged_again(run, rows))),
            (_needless.in_other_pieces, rows.take(averaged_in_other_pieces(run, rows))),
            (_needless.sent_again, rows.take(again)),
            (_needless.sent_always, rows.take(sent_always(run, rows) & ~again)),
            (_needless.regathered, _regathered(rows, repeated)),
            (_needless.frozen, rows.take(gathers_of_frozen(rows))),
            (_needless.cut, rows.take(of_layers.cut)),
            (_needless.whole_of_layers, rows.take(of_layers.behind)),
            (_needless.whole, rows.take(whole)),
            (_needless.objects, rows.take(same)),
            (_needless.states, rows.take(sent_states(rows) & ~same)),
            (_needless.pickled, rows.take(exchanged_objects(rows) & ~same)),
            (_needless.pickled, messages_of_objects(run)),
            (_needless.logits, rows.take(logits)),
            (_needless.norms, rows.take(norms & ~logits & ~whole)),
            (_needless.new_groups, rows.take(firsts_of_new_groups(rows))),
        ):
            edit = _EDITS.get(say, not_issued)
            cost = _cost_ns(run, found, edit, as_measured(run)) if len(found) else 0
            if edit is not_waited_in and worth_reporting(cost, run, self.min_step_share):
                # Who is late for a barrier is late for what comes next without it.
                late = mended_lags(run, self.min_step_share)
                cost = min(cost, _cost_ns(run, found, edit, late))
            if worth_reporting(cost, run, self.min_step_share):
                its = self._finding(run, say(found), found, _operations(found).size, cost)
                yield replace(its, spares_memory=_SPARE_MEMORY.get(say, False))

    def _finding(
        self, run: Measures, said: _needless.Said, needless: Rows, count: int, cost_ns: int
    ) -> Finding:
        share = share_pct(cost_ns, run)
        many = f"{counted(count, 'operation')} too many, " if said.too_many else ""
        return self.finding(
            needless,
            summary=f"{said.what}: {many}{ms(cost_ns)} to save",
            cost_ns=cost_ns,
            evidence=(
                Evidence("needless " * said.too_many + "operations", count, "operations", 0),
                said.evidence,
                Evidence(
                    f"saved without them, {of_time(run)}",
                    share,
                    "%",
                    100 * self.min_step_share,
                ),
                *of_unrecorded(run),
            ),
            ruled_out=said.ruled_out,
            advice=said.advice,
            confidence=said.confidence,
        )

    @staticmethod
    def bad() -> Measures:
        """Four micro-batches, each of which reduces the gradients."""
        return _training(reducing=(0, 1, 2, 3))

    @staticmethod
    def good() -> Measures:
        """Only the last one does."""
        return _training(reducing=(3,))


def _training(reducing: tuple[int, ...]) -> Measures:
    """Hosts launch a whole step at once; what is computed next needs what was reduced."""
    run = Tiny(ranks=2)
    for step in range(3):
        for rank in range(2):
            start, at = step * 3300, step * 3300 + 100
            run.step(rank, step, start, 3300)
            for micro in range(4):
                called = start + 20 * micro
                launched = {"launch_ns": BASE_NS + 1000 * (called + 15)}
                run.step(rank, step, called, 10, label="DistributedDataParallel.forward")
                run.kernel(rank, at, 398, **launched)
                at += 400
                if micro in reducing:
                    run.collective(rank, "all_reduce", at, 398, size=1 << 24, **launched)
                    at += 400
    return run.trace()


def _unsized(run: Measures) -> bool:
    """Whether any collective has no known size: on CPUs only shapes tell it."""
    calls = run.rows("collectives")
    op = calls.coded("op")
    whole = op.known & ~op.being("barrier") & ~op.where(POINT_TO_POINT.__contains__)
    return bool((whole & (calls.ints("size_bytes") == NULL)).any())


def _repeated(run: Measures, rows: Rows, every: Rows, marked: Placed) -> Rows:
    """What is reduced after a micro-batch that is not the last; ``marked`` are of ``every``."""
    if marked.row.size:
        return repeated_in_accumulation(every, marked)
    return repeated_in_accumulation(rows, placed_by_threads(run, rows))


def _regathered(rows: Rows, repeated: Rows) -> Rows:
    """Gathers of parameters that are needless, beside reductions that are all needed."""
    others = rows.take(~np.isin(rows.ints("operation"), _operations(repeated)))
    return others.take(regathered(others))


_SPARE_MEMORY: dict[Callable[..., _needless.Said], str] = {
    _needless.regathered: "some",
    _needless.frozen: "all",
}
_EDITS = {
    _needless.barrier: not_waited_in,
    _needless.at_messages: not_waited_in,
    _needless.objects: without_objects,
    _needless.states: states_as_tensors,
    _needless.pickled: as_tensors,
    _needless.logits: on_shards,
    _needless.new_groups: idling_less,
}


def _operations(rows: Rows) -> Int64:
    return distinct(rows.ints("operation"))


def _cost_ns(
    run: Measures, rows: Rows, edit: Callable[[Measures, Bool, Lags], Lags], lag_ns: Lags
) -> int:
    """What is saved without these operations, replayed with these lags."""
    need_replay(run)
    its, lag = run_graph(run), at_own_pace(run, lag_ns)
    needless = np.isin(its.calls.operation, _operations(rows))
    change = changes(lag, edit(run, needless, lag))
    return max(int(saved_by(run, lag, [change]).sum()), 0)
