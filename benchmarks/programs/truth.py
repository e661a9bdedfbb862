"""What is wrong with each program when it is started with one of its faults."""

from __future__ import annotations

from benchmarks.programs.eighteenth_lot import EIGHTEENTH
from benchmarks.programs.eighth_lot import EIGHTH
from benchmarks.programs.eleventh_lot import ELEVENTH
from benchmarks.programs.fifteenth_lot import FIFTEENTH
from benchmarks.programs.fifth_lot import FIFTH
from benchmarks.programs.fourteenth_lot import FOURTEENTH
from benchmarks.programs.fourth_lot import FOURTH
from benchmarks.programs.nineteenth_lot import NINETEENTH
from benchmarks.programs.ninth_lot import NINTH
from benchmarks.programs.program import (
    COMPUTE,
    EVERY_THIRD,
    IDLE,
    LATE,
    LOADER,
    MESSAGE,
    SAVED,
    STAGE,
    Fault,
    Program,
)
from benchmarks.programs.seventeenth_lot import SEVENTEENTH
from benchmarks.programs.seventh_lot import SEVENTH
from benchmarks.programs.sixteenth_lot import SIXTEENTH
from benchmarks.programs.sixth_lot import SIXTH
from benchmarks.programs.tenth_lot import TENTH
from benchmarks.programs.third_lot import THIRD
from benchmarks.programs.thirteenth_lot import THIRTEENTH
from benchmarks.programs.twelfth_lot import TWELFTH
from benchmarks.programs.twentieth_lot import TWENTIETH

__all__ = [
    "EIGHTEENTH",
    "EIGHTH",
    "ELEVENTH",
    "FIFTEENTH",
    "FIFTH",
    "FIRST",
    "FOURTEENTH",
    "FOURTH",
    "HOSTS",
    "NINETEENTH",
    "NINTH",
    "PROGRAMS",
    "SECOND",
    "SEVENTEENTH",
    "SEVENTH",
    "SIXTEENTH",
    "SIXTH",
    "TENTH",
    "THIRD",
    "THIRTEENTH",
    "TWELFTH",
    "TWENTIETH",
]

FIRST = (
    Program(
        "actor_learner",
        (Fault("slow-actor", (*LATE, "early-root"), (1,), "gather", IDLE, 40),),
        always=("late-root", *LATE),  # the actors wait while the learner learns
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
    Program("group_order", (Fault("shared-group", ("head-of-line",), place="all_reduce"),)),
    Program(
        "hf_trainer",
        (
            Fault("checkpoint", LATE, (0,), "barrier", SAVED, 150, at=range(7, 15, 6)),
            Fault("evaluation", LATE, (0,), "all_reduce", COMPUTE, 150, at=EVERY_THIRD),
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
        (Fault("periodic-stall", LATE, (0,), "all_reduce", IDLE, 120, at=EVERY_THIRD),),
    ),
)

SECOND = (
    Program(
        "augment_batchnorm",
        (Fault("heavy-augment", (*LATE, "late-root"), (0,), "broadcast", COMPUTE),),
    ),
    Program("bucket_handles", (Fault("grad-histograms", LATE, (0,), "all_reduce", COMPUTE, 18),)),
    Program("clip_contrastive", (Fault("slow-tokenizer", LATE, (1,), "all_gather", IDLE, 18),)),
    Program("cyclic_graphs", (Fault("in-turn", ("jitter",), place="all_reduce"),)),
    Program("diloco_sites", (Fault("slow-site", LATE, (0,), "all_reduce", COMPUTE, 12),)),
    Program(
        "eval_objects",
        (Fault("long-shard", LATE, (1,), "all_gather", COMPUTE, at=range(3, 15, 2)),),
    ),
    Program(
        "four_readers",
        (Fault("slow-server", LATE, (1, 3), "all_reduce", LOADER, 30),),
        world_size=4,
    ),
    Program("fsdp2_uneven", (Fault("long-documents", LATE, (0,), causes=COMPUTE),)),
    Program(
        "gather_logits",
        (Fault("bootstrap", LATE, (0,), "all_reduce", COMPUTE, 20),),
        always=("straggler", "device-late"),  # rank 0 looks at everybody's logits anyway
    ),
    Program(
        "halo_stencil",
        (Fault("slow-sensor", (*LATE, *MESSAGE), (1,), causes=IDLE, delay_ms=12),),
        world_size=3,
    ),
    Program("join_uneven", (Fault("slow-storage", LATE, (0,), "all_reduce", IDLE, 10),)),
    Program(
        "late_metrics",
        (Fault("nfs-hiccups", LATE, (1,), "all_reduce", IDLE, 80, at=range(2, 15, 4)),),
    ),
    Program("live_dashboard", (Fault("drawing", LATE, (1,), "all_reduce", (*COMPUTE, *IDLE)),)),
    Program(
        "log_to_disk",
        (
            Fault("slow-disk", LATE, (0,), "all_reduce", IDLE, 12),
            Fault("debug-log", ()),
        ),
    ),
    Program(
        "mesh_experts",
        (Fault("slow-expert", LATE, (3,), "all_to_all", IDLE, 30),),
        world_size=4,
    ),
    Program(
        "nano_gpt",
        (
            Fault("slow-memmap", LATE, (1,), "all_reduce", IDLE, 24),
            Fault("eval-on-master", LATE, (0,), "all_reduce", COMPUTE, at=range(1, 15, 4)),
        ),
    ),
    Program("pipe_three", (Fault("slow-stage", STAGE, (1,), "send", IDLE, 24),), world_size=3),
    Program(
        "ppo_rollouts",
        (Fault("slow-env", (*LATE, "early-root"), (2,), "gather", IDLE, 32),),
        world_size=3,
        always=("late-root", "early-root"),  # the learner and the others do take turns
    ),
    Program(
        "ring_by_hand",
        (Fault("slow-host", (*LATE, *MESSAGE), (2,), "send", IDLE, 25),),
        world_size=3,
    ),
    Program(
        "save_everything",
        (Fault("save-often", LATE, (0,), "all_reduce", SAVED, at=EVERY_THIRD),),
    ),
    Program(
        "scatter_batches",
        (Fault("slow-archive", ("late-root", *LATE), (0,), "scatter", IDLE, 28),),
        world_size=3,
        always=("late-root",),  # only rank 0 reads
    ),
    Program("shampoo_zero", (Fault("whiten-one-shard", LATE, (1,), "all_gather", COMPUTE),)),
    Program(
        "spot_instances",
        (Fault("hiccups", ("jitter",), place="all_reduce"),),
        world_size=4,
    ),
    Program("topk_hook", (Fault("sorting-rank", LATE, (0,), "all_gather", COMPUTE),)),
    Program(
        "validate_ema",
        (Fault("long-validation", LATE, (0,), "barrier", COMPUTE, at=EVERY_THIRD),),
    ),
    Program("worker_loader", (Fault("slow-worker", LATE, (1,), "all_reduce", LOADER),)),
)

HOSTS = (
    Program(
        "gossip_hosts",
        (Fault("slow-link", ("slow-link",), (1, 2), "send", link_mbit=50),),
        world_size=4,
        hosts=4,
    ),
)

PROGRAMS = (
    *FIRST,
    *SECOND,
    *HOSTS,
    *THIRD,
    *FOURTH,
    *FIFTH,
    *SIXTH,
    *SEVENTH,
    *EIGHTH,
    *NINTH,
    *TENTH,
    *ELEVENTH,
    *TWELFTH,
    *THIRTEENTH,
    *FOURTEENTH,
    *FIFTEENTH,
    *SIXTEENTH,
    *SEVENTEENTH,
    *EIGHTEENTH,
    *NINETEENTH,
    *TWENTIETH,
)
"""In the order in which they were written, each lot by name."""
