"""What is said of communication that nobody needs, by kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from msgspec import Struct, structs

from commtrace.arrays import NULL, codes, distinct, first_rows
from commtrace.diagnosis import Evidence
from commtrace.quantiles import median
from commtrace.rules._parameter_gathers import KEPT

if TYPE_CHECKING:
    from commtrace.table import Rows


class Said(Struct, frozen=True):
    """A finding's words, but for what it costs; whether the operations are ``too_many``."""

    what: str
    evidence: Evidence
    ruled_out: tuple[str, ...]
    advice: str
    confidence: Literal["high", "medium", "low"]
    too_many: bool = True


CHECKS = Said(
    "PyTorch checks each collective before it runs, at the debug level DETAIL",
    Evidence("checks of a collective", 4, "operations", 0),
    ("the program's own: no call of it made these, before each of its collectives the same",),
    "unset TORCH_DISTRIBUTED_DEBUG, or set_debug_level(DebugLevel.OFF), and record again: the "
    "checks hide who is late",
    "high",
)


def accumulated(needless: Rows) -> Said:
    return Said(
        "gradients are reduced after every micro-batch",
        Evidence(
            "micro-batches that reduce",
            median(needless.ints("micro_batches")),
            "micro-batches",
            1,
        ),
        ("other gradients: the last micro-batch reduces the same, before any update",),
        "wrap all micro-batches but the last in no_sync()"
        if needless.coded("op").being("all_reduce").all()
        else "call set_requires_gradient_sync(False) for all micro-batches but the last (with "
        "FSDP1 wrap these in no_sync()), if whole gradients fit in memory",
        "high" if (needless.ints("size_bytes") != NULL).all() else "medium",
    )


def accumulated_by_hand(needless: Rows) -> Said:
    advice = (
        "if these are gradients of the same parameters, reduce once, behind the last micro-batch's "
        "backward: they add up until then"
    )
    return structs.replace(accumulated(needless), advice=advice, confidence="low")


def of_another(needless: Rows) -> Said:
    return Said(
        "one model's pass reduces the gradients of another, which that one's own pass computes",
        Evidence("largest", float(needless.ints("size_bytes").max()) / 1e6, "MB"),
        ("gradients that are used: the other's update takes as many, which its own pass reduces",),
        "while one model trains through the other (a generator through its discriminator), call "
        "requires_grad_(False) on the other's parameters",
        "medium",
    )


def barrier(needless: Rows) -> Said:
    return Said(
        "barriers next to collectives that hold the ranks together anyway",
        _shortest(needless),
        ("ordering of communication: the collective of the same group waits for all as well",),
        "leave the barrier out, unless it orders something outside communication",
        "medium",
    )


def _shortest(barriers: Rows) -> Evidence:
    return Evidence(
        "shortest of a barrier's", float(barriers.ints("duration_ns").min()) / 1e3, "µs"
    )


def at_messages(needless: Rows) -> Said:
    return Said(
        "barriers next to messages, each of which waits for its sender anyway",
        _shortest(needless),
        ("what messages wait for: without the barriers the replay has these waits, too",),
        "leave the barriers out, unless they order something outside communication: a recv is done "
        "once its message is there, and ranks need not be in step",
        "medium",
    )


def twice(needless: Rows) -> Said:
    return Said(
        "the same bytes seem to be reduced twice, over a group and then within it",
        Evidence("size", median(needless.ints("size_bytes")) / 1e6, "MB"),
        ("new values: nothing that could have changed them ran in between",),
        "reduce over the larger group once, if both reduce the same tensor",
        "low",
    )


def buffers(needless: Rows) -> Said:
    return Said(
        "DDP sends its module's buffers before every forward pass",
        Evidence("largest", float(needless.ints("size_bytes").max()) / 1e6, "MB"),
        ("other data: nothing else is sent in a forward pass before them",),
        "construct DDP with broadcast_buffers=False, if no buffer changes or ranks may differ in "
        "it, as in BatchNorm's; keep constant tables, as masks, out of the buffers",
        "medium",
    )


def averaged_again(needless: Rows) -> Said:
    return Said(
        "behind DDP's own all_reduces as much is all_reduced again, gradients or parameters",
        Evidence("largest", float(needless.ints("size_bytes").max()) / 1e6, "MB"),
        ("micro-batches: each of these steps has one forward pass",),
        "leave out the second: when backward() returns DDP has averaged the gradients, of which "
        "every rank computes the same parameters",
        "medium",
    )


def in_other_pieces(needless: Rows) -> Said:
    its = averaged_again(needless)
    return structs.replace(
        its,
        what="as much is all_reduced again in every step, in other pieces: gradients twice, it "
        "seems",
        ruled_out=("micro-batches, and what layers sum: each has the same pieces",),
        advice="leave out the second: what was averaged is the same on every rank",
    )


def sent_again(needless: Rows) -> Said:
    return Said(
        "one rank sends in every step as much as was all_reduced, the parameters it seems",
        Evidence("largest", float(needless.ints("size_bytes").max()) / 1e6, "MB"),
        ("an update that only the root does: between the two it works no longer than the others",),
        "leave them out: of the same gradients every rank computes the same parameters; send them "
        "once, before the first step",
        "medium",
    )


def sent_always(needless: Rows) -> Said:
    step = codes(needless.ints("rank"), needless.ints("step"))
    once = first_rows(codes(step, needless.ints("operation")))
    parts = median(np.bincount(step[once]))
    return Said(
        f"one rank sends the same {parts:.0f} tensors in every step, which all have, it seems",
        Evidence("largest", float(needless.ints("size_bytes").max()) / 1e6, "MB"),
        ("something that only the root does: before it sends it works no longer than the others",),
        "if they do not change, as those of a frozen model, send them once, before the first step; "
        "if all have them, as what was gathered or averaged before, leave it out",
        "low",
    )


def regathered(needless: Rows) -> Said:
    step = codes(needless.ints("rank"), needless.ints("step"))
    return Said(
        "the same parameters are gathered again and again in a step, though nothing updates them",
        Evidence("gathered again", median(np.bincount(step)), "times a step", 0),
        ("parameters that changed: each is reduced, for an update, once in all of these",),
        "keep them, if memory has room: set_reshard_after_backward(False) for all micro-batches "
        "but the last and reshard_after_forward=False; with FSDP1 SHARD_GRAD_OP within no_sync(); "
        "with ZeRO-3 a larger stage3_max_live_parameters and stage3_max_reuse_distance; leave a "
        "frozen model whole",
        "medium",
    )


def frozen(needless: Rows) -> Said:
    step = codes(needless.ints("rank"), needless.ints("step"))
    return Said(
        "parameters of which hardly any has a gradient are gathered in every step, as of a model "
        "that is frozen but for adapters",
        Evidence("gathered", median(np.bincount(step)), "times a step", 0),
        ("parameters that are trained: not a tenth as many elements are reduced",),
        "leave the frozen model whole on each GPU if memory has room (DDP or ZeRO-2 for what is "
        "trained; frozen weights in 8 or 4 bits), or keep what forward gathered for backward "
        f"({KEPT})",
        "medium",
    )


def cut(needless: Rows) -> Said:
    step = codes(needless.ints("rank"), needless.ints("step"))
    return Said(
        "activations are gathered that the next layer cuts again, it seems, of tensor parallelism",
        Evidence("gathered", median(np.bincount(step)), "times a step", 0),
        ("parameters: their gradients would be scattered", "a gather alone: backward gathers, too"),
        "keep them split from a column-wise layer to the row-wise one behind it: "
        "output_layouts=Shard(-1), ColwiseParallel's default; Megatron-LM: gather_output=False and "
        "input_is_parallel=True",
        "low",
    )


def whole(needless: Rows) -> Said:
    step = codes(needless.ints("rank"), needless.ints("step"))
    return Said(
        "parameters or gradients are gathered whole, one by one, beside what FSDP gathers",
        Evidence("gathered whole", median(np.bincount(step)), "times a step", 0),
        ("activations: in all these have as many elements as the gradients",),
        "take norms and statistics of what each rank keeps, and all_reduce the numbers "
        "(clip_grad_norm_ does); save what each keeps (torch.distributed.checkpoint); look at "
        "whole tensors (full_tensor()) less often",
        "medium",
    )


def whole_of_layers(needless: Rows) -> Said:
    return structs.replace(
        whole(needless),
        what="parameters or gradients that tensor parallelism splits are gathered whole, one by "
        "one, when backward is over",
        ruled_out=("activations: no layer runs any more",),
    )


def objects(needless: Rows) -> Said:
    return Said(
        "one rank sends Python objects in every step, of the same size, constant it seems",
        Evidence("largest", float(needless.ints("size_bytes").max()) / 1e6, "MB"),
        ("tensors: sizes, then as many bytes, as broadcast_object_list sends what it pickled",),
        "send them once, or when they change; what does change goes faster as a tensor: objects "
        "are pickled by the sender and unpickled by all others while everybody waits",
        "medium",
    )


def states(sent: Rows) -> Said:
    return Said(
        "one rank broadcasts large Python objects again and again, as states of models: it pickles "
        "them and all others unpickle",
        Evidence("largest", float(sent.ints("size_bytes").max()) / 1e6, "MB"),
        ("tensors: sizes, then as many bytes, as broadcast_object_list sends what it pickled",),
        "broadcast the tensors themselves, as one flat one, and only what the others use: for "
        "inference parameters without an optimizer's state; or less often (the saving is what "
        "pickling so many bytes of tensors takes)",
        "medium",
        too_many=False,
    )


def pickled(exchanged: Rows) -> Said:
    often = "in every step" if (exchanged.ints("step") != NULL).any() else "again and again"
    return Said(
        f"ranks exchange Python objects {often}, each pickled by one and unpickled by others",
        Evidence("largest", float(exchanged.ints("size_bytes").max()) / 1e6, "MB"),
        ("tensors: sizes, then as many bytes, as all_gather_object gathers what it pickled",),
        f"{_verb(exchanged)} tensors: numbers, features and ids as they are, texts as padded "
        "bytes; objects only now and then (the saving is the telling of their lengths, and what "
        "runs no operator right before and behind, all of it pickling or not)",
        "low",
        too_many=False,
    )


def new_groups(firsts: Rows) -> Said:
    count = distinct(firsts.ints("operation")).size
    return Said(
        "a process group is made in every step, and used in no other",
        Evidence("groups", count, "groups"),
        ("a group's first operation: it is what runs no operator right before that",),
        "make it once, before the loop: for each all ranks meet at the store (the saving is what "
        "runs no operator right before its first operation, all of it for that or not)",
        "medium",
        too_many=False,
    )


def _verb(exchanged: Rows) -> str:
    ops = exchanged.coded("op")
    ways = ("scatter", "send", "all_gather", "broadcast")  # a scatter's lengths are broadcast
    way = next((op for op in ways if ops.being(op).any()), "gather")
    return way.removeprefix("all_")


def norms(gathered: Rows) -> Said:
    return Said(
        "what is gathered goes into a norm, of which each rank has its part",
        Evidence("largest", float(gathered.ints("size_bytes").max()) / 1e6, "MB"),
        ("its use: it is squared, or its norm taken, before anything else computes",),
        "square and sum what each rank has, and all_reduce that number (its root is the norm)",
        "medium",
    )


def logits(gathered: Rows) -> Said:
    return Said(
        "what seems to be logits is gathered, and every rank computes the same loss, "
        "probabilities, metric or counts",
        Evidence("largest", float(gathered.ints("size_bytes").max()) / 1e6, "MB"),
        ("parameters: a softmax, or a count, comes right behind them, and no product of matrices",),
        "compute the loss of shards: where ranks have parts of the vocabulary exchange each "
        "token's maximum, sum of exponentials and target's logit (loss_parallel, a "
        "vocabulary-parallel cross entropy); where they have tokens, average their losses; to "
        "sample, gather each rank's top k of the last position; of a metric, or of clusters, "
        "all_reduce the sums and counts that each rank has of its own part (without "
        "recorded shapes the saving is the gather's alone: of a part the loss takes less, too)",
        "medium",
    )
