"""A third lot of programs, and what is wrong with each when it is started with its fault.

Written by somebody who had not read the rules, after those of the second lot were mended.
"""

from __future__ import annotations

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

__all__ = ["THIRD"]

FOR_NOTHING = ("exposed-communication", "redundant")  # as large as it is useless

THIRD = (
    Program(
        "adapter_tuning",
        (Fault("sample-text", LATE, (0,), "all_reduce", COMPUTE, at=range(2, 15, 2)),),
    ),
    Program("char_rnn", (Fault("detect-anomaly", LATE, (0,), "all_reduce", (*COMPUTE, *IDLE)),)),
    Program("clip_norms", (Fault("one-by-one", ("latency-bound",), place="all_reduce"),)),
    Program(
        "evolution",
        (Fault("slow-simulator", LATE, (2,), "all_gather", IDLE, 48),),
        world_size=4,
    ),
    Program("feature_strings", (Fault("nested-json", LATE, (1,), "all_reduce", IDLE),)),
    Program("fed_avg", (Fault("more-data", LATE, (1,), "all_reduce", COMPUTE),)),
    Program("fsdp1_tokens", (Fault("slow-tokenizer", LATE, (0,), "all_gather", IDLE),)),
    Program("gather_vocab", (Fault("gather-logits", FOR_NOTHING, place="all_gather"),)),
    Program(
        "gc_unaligned",
        (
            Fault(
                "unaligned",
                ("jitter",),
                place="all_reduce",
                at=range(2, 15, 2),
                turns=(range(2, 15, 4), range(4, 15, 4)),
            ),
        ),
    ),
    Program(
        "hogwild_messages",
        (Fault("slow-store", (*LATE, *MESSAGE), (2,), "send", IDLE, 30),),
        world_size=3,
    ),
    Program("latent_cache", (Fault("cache-miss", LATE, (1,), "all_reduce", COMPUTE),)),
    Program("lbfgs_pinn", (Fault("fine-domain", LATE, (1,), "all_reduce", COMPUTE),)),
    Program("long_lines", (Fault("untruncated", LATE, (1,), "all_reduce", COMPUTE),)),
    Program("mask_buffers", (Fault("long-context", FOR_NOTHING, place="broadcast"),)),
    Program(
        "moco_index",
        (Fault("index-often", LATE, (0,), "all_reduce", COMPUTE, at=EVERY_THIRD),),
    ),
    Program(
        "muon_owner",
        (Fault("weights-on-one", (*LATE, "late-root"), (1,), "broadcast", COMPUTE),),
        always=(*LATE, "device-late"),  # of five matrices rank 0 owns three
    ),
    Program(
        "object_batches",
        (Fault("slow-tokenizer", ("late-root", *LATE), (0,), "broadcast", IDLE),),
        world_size=3,
        always=("late-root",),  # only rank 0 reads
    ),
    Program("pipe_lm_head", (Fault("large-vocabulary", STAGE, (1,), "send", COMPUTE),)),
    Program("post_local_sgd", (Fault("slow-disk", LATE, (1,), "all_reduce", LOADER, 36),)),
    Program("recompute_mixed", (Fault("recompute", LATE, (1,), "all_reduce", COMPUTE),)),
    Program(
        "shard_savers",
        (Fault("slow-disk", LATE, (2,), "barrier", SAVED, 90, at=EVERY_THIRD),),
        world_size=3,
    ),
    Program("small_buckets", (Fault("tiny-buckets", ("latency-bound",), place="all_reduce"),)),
    Program("smi_logging", (Fault("poll-often", LATE, (0,), "all_reduce", IDLE, 40),)),
    Program(
        "upload_images", (Fault("images", LATE, (0,), "all_reduce", IDLE, at=range(2, 15, 2)),)
    ),
    Program("vocab_parallel", (Fault("print-samples", LATE, (0,), "all_reduce", COMPUTE),)),
    Program(
        "web_shards",
        (Fault("cold-storage", LATE, (0,), "all_reduce", (*LOADER, *IDLE), 160, at=EVERY_THIRD),),
    ),
)
"""By name."""
