"""A twentieth lot of programs, and what is wrong with each when it is started with its fault.

Written by somebody who knew neither the rules nor the other programs.
"""

from __future__ import annotations

from benchmarks.programs.program import (
    COMPUTE,
    EVERY_THIRD,
    LATE,
    LOADER,
    MESSAGE,
    NEEDLESS,
    PYTHON,
    ROOT,
    SAVED,
    STAGE,
    TOO_MUCH,
    Fault,
    Program,
)

__all__ = ["TWENTIETH"]

TWENTIETH = (
    Program("asr_ctc", (Fault("contiguous_shards", LATE, (1,), "all_reduce", COMPUTE),)),
    # whoever has the long episode, the learner waits for it: no actor is slower than another
    Program(
        "bandit_actors", (Fault("fixed_order", ("late-receiver",), (0,), "send"),), world_size=4
    ),
    Program("clip_pairs", (Fault("gather_objects", ("redundant",), place="all_gather"),)),
    Program("ctr_sharded", (Fault("rebroadcast", NEEDLESS, place="broadcast"),), world_size=3),
    Program(
        "cxr_finetune",
        (Fault("nfs_shard", LATE, (2, 3), "all_reduce", LOADER),),
        world_size=4,
    ),
    # ZeRO's update sends each parameter by itself, with and without the checkpoints
    Program(
        "ddpm_zero",
        (Fault("frequent_checkpoint", LATE, (0,), "all_reduce", SAVED, at=EVERY_THIRD),),
        always=("latency-bound",),
    ),
    Program("deep_gcn", (Fault("per_tensor", ("latency-bound",), place="all_reduce"),)),
    Program(
        "diloco",
        (Fault("fp64_outer", ("full-precision-payload",), place="all_reduce"),),
        world_size=3,
    ),
    Program("gan_rings", (Fault("preview_each_step", LATE, (0,), "all_reduce", COMPUTE),)),
    Program("gpt_fsdp2", (Fault("reduce_every_micro", ("redundant",), place="reduce_scatter"),)),
    Program(
        "kmeans_blocks", (Fault("gather_partials", TOO_MUCH, place="all_gather"),), world_size=3
    ),
    # a stack for every operator: Python, within operators and between them
    Program("lora_tp", (Fault("anomaly_left_on", LATE, (1,), "all_reduce", PYTHON),)),
    Program(
        "moe_parallel",
        (Fault("router_collapse", (*LATE, "uneven-all-to-all"), (1,), "all_to_all", COMPUTE),),
    ),
    Program(
        "pipe_lm",
        (Fault("tail_heavy", STAGE, (1,), "", COMPUTE),),
        always=STAGE,  # seven blocks against three and the head are uneven, too
    ),
    Program("review_lengths", (Fault("own_shuffle", ("jitter",), place="all_reduce"),)),
    Program("shampoo_tp", (Fault("roots_every_step", ()),)),  # all are slower alike
    # tile by tile: the neighbours wait for it in the exchange, and all in the sum
    Program(
        "shield_flux",
        (Fault("reference_kernel", (*MESSAGE, *LATE), (2,), "", COMPUTE),),
        world_size=3,
    ),
    Program(
        "text_search", (Fault("text_requests", ROOT, (0,), "broadcast", PYTHON),), world_size=3
    ),
)
