"""What is wrong with each program when it is started with one of its faults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["PROGRAMS", "SCRIPTS", "Fault", "Program"]

SCRIPTS = Path(__file__).parent / "scripts"

LATE = ("straggler",)
MESSAGE = ("late-sender", "late-receiver")
STAGE = ("straggler", "late-sender", "late-receiver", "pipeline-bubble")

COMPUTE = ("compute",)
IDLE = ("host", None)
LOADER = ("loader",)
SAVED = ("checkpoint", *IDLE)  # what follows torch.save is in no range of its own

THIRD = range(4, 15, 3)


@dataclass(frozen=True)
class Fault:
    """What ``--fault NAME`` does.

    The first finding has to be of one of the ``rules`` and name just these ``ranks``; without
    rules it is right to blame nobody. ``place`` is the communication that the fault delays, and
    ``causes`` are those that are right for what the ranks did meanwhile. ``at`` are the steps in
    which it happens, as the recorder numbers them, if not in all; ``delay_ms`` is what each of
    these is delayed by, if that is known. With ``link_mbit`` the fault is no script's: the first
    of the ``ranks``' hosts can send no more than that to the second's.
    """

    name: str
    rules: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    place: str = ""
    causes: tuple[str | None, ...] = ()
    delay_ms: float | None = None
    at: range | None = None
    link_mbit: int | None = None

    def happens(self, steps: range) -> int:
        """In how many of these steps it happens."""
        return len(steps) if self.at is None else len(set(self.at) & set(steps))

    def mean_delay_ms(self, steps: range) -> float | None:
        """What each of these steps is delayed by in the mean, if that is known."""
        return self.delay_ms and self.delay_ms * self.happens(steps) / len(steps)


@dataclass(frozen=True)
class Program:
    """A script; ``always`` are rules that are right to report something without a fault, too.

    On several ``hosts`` these are network namespaces, with as many ranks each.
    """

    name: str
    faults: tuple[Fault, ...]
    world_size: int = 2
    always: tuple[str, ...] = ()
    hosts: int = 1

    @property
    def path(self) -> Path:
        """The script."""
        return SCRIPTS / f"{self.name}.py"

    @property
    def runs(self) -> tuple[str, ...]:
        """What ``--fault`` takes."""
        return ("none", *(fault.name for fault in self.faults))


PROGRAMS = (
    Program(
        "actor_learner",
        (Fault("slow-actor", (*LATE, "early-root"), (1,), "gather", IDLE, 40),),
    ),
    Program(
        "barrier_loop",
        (Fault("periodic-stall", LATE, (1,), "barrier", IDLE, 200, at=range(4, 11, 3)),),
    ),
    Program(
        "ddp_accumulate",
        (
            Fault("no-no-sync", ("redundant",), place="all_reduce"),
            Fault("slow-loader", LATE, (1,), "all_reduce", LOADER, 40),
        ),
    ),
    Program(
        "ddp_find_unused",
        (Fault("garbage-collection", LATE, (1,), "all_reduce", ("garbage-collection",)),),
    ),
    Program(
        "ddp_fp16_hook",
        (Fault("stall-once", LATE, (1,), "all_reduce", IDLE, 300, at=range(7, 8)),),
    ),
    Program(
        "ddp_mlp",
        (
            Fault("slow-rank", LATE, (1,), "all_reduce", COMPUTE, 30),
            Fault("sleeping-rank", LATE, (0,), "all_reduce", IDLE, 25),
        ),
    ),
    Program("ddp_static_graph", (Fault("sleeping-rank", LATE, (0,), "all_reduce", IDLE, 35),)),
    Program("distillation", (Fault("slow-rank", LATE, (0,), "all_reduce", COMPUTE, 40),)),
    Program("dlrm_embeddings", (Fault("slow-loader", LATE, (0,), "all_to_all", IDLE, 45),)),
    Program("early_wait", (Fault("early-wait", ("false-overlap",), place="all_reduce"),)),
    Program(
        "ema_clip",
        (
            Fault("ema-on-rank-0", LATE, (0,), "all_reduce", COMPUTE, 35),
            Fault("sleeping-rank", LATE, (1,), "all_reduce", IDLE, 40),
        ),
    ),
    Program(
        "fsdp2_checkpoint",
        (Fault("checkpoint", LATE, (0,), "barrier", SAVED, 200, at=range(3, 15, 3)),),
    ),
    Program("fsdp2_transformer", (Fault("sleeping-rank", LATE, (1,), "all_gather", IDLE, 30),)),
    Program("gan_in_turn", (Fault("turns", ("jitter",), place="all_reduce"),)),
    Program("gather_metrics", (Fault("slow-loader", LATE, (0,), "all_reduce", LOADER, 32),)),
    Program(
        "gossip_hosts",
        (Fault("slow-link", ("slow-link",), (1, 2), "send", link_mbit=50),),
        world_size=4,
        hosts=4,
    ),
    Program("group_order", (Fault("shared-group", ("head-of-line",), place="all_reduce"),)),
    Program(
        "hf_trainer",
        (
            Fault("checkpoint", LATE, (0,), "barrier", SAVED, 150, at=range(7, 15, 6)),
            Fault("evaluation", LATE, (0,), "all_reduce", COMPUTE, 150, at=THIRD),
        ),
    ),
    Program(
        "hsdp_mesh",
        (Fault("slow-loader", LATE, (2,), "all_gather", LOADER, 50),),
        world_size=4,
    ),
    Program("loader_for_all", (Fault("slow-loader", ()),)),
    Program("local_sgd", (Fault("sleeping-rank", LATE, (1,), "all_reduce", IDLE, 30),)),
    Program("moe_all_to_all", (Fault("uneven-experts", LATE, (1,), "all_to_all", COMPUTE),)),
    Program(
        "moe_four_experts",
        (Fault("uneven-experts", LATE, (2,), "all_to_all", IDLE),),
        world_size=4,
    ),
    Program(
        "param_server",
        (
            Fault("slow-server", ("late-root",), (0,), "broadcast", IDLE, 30),
            Fault("slow-worker", ("early-root", *LATE), (1,), "reduce", IDLE, 30),
        ),
    ),
    Program(
        "pinned_neighbour",
        (Fault("busy-neighbour", LATE, (1,), "all_reduce", (*COMPUTE, *IDLE)),),
    ),
    Program("pipe_1f1b", (Fault("uneven-stages", STAGE, (1,), "send", COMPUTE),)),
    Program("pipe_by_hand", (Fault("uneven-stages", STAGE, (1,), "send", COMPUTE),)),
    Program("pipe_gpipe", (Fault("slow-stage", STAGE, (0,), "send", IDLE, 32),)),
    Program(
        "ring_attention",
        (Fault("sleeping-rank", (*LATE, *MESSAGE), (1,), "send", IDLE, 25),),
    ),
    Program(
        "sequence_parallel",
        (Fault("sleeping-rank", LATE, (1,), "reduce_scatter", IDLE, 30),),
    ),
    Program("tiny_metrics", (Fault("many-tiny", ("latency-bound",), place="all_reduce"),)),
    Program(
        "tp_dp_mesh",
        (Fault("slow-replica", LATE, (2, 3), "all_reduce", IDLE, 40),),
        world_size=4,
    ),
    Program("tp_dtensor", (Fault("sleeping-rank", LATE, (0,), "all_reduce", IDLE, 30),)),
    Program("tp_megatron", (Fault("needless-barriers", ("redundant",), place="barrier"),)),
    Program("uneven_batches", (Fault("uneven-batches", LATE, (1,), "all_reduce", COMPUTE),)),
    Program(
        "zero_optimizer",
        (Fault("periodic-stall", LATE, (0,), "all_reduce", IDLE, 120, at=THIRD),),
    ),
)
