"""A thirteenth lot of programs, and what is wrong with each when it is started with its fault.

Written by somebody who had read neither the rules nor their pages: meshes and pipelines,
evaluation and inference, and the tools that prepare data.
"""

from __future__ import annotations

from benchmarks.programs.program import (
    COMPUTE,
    EVERY_THIRD,
    IDLE,
    LATE,
    MESSAGE,
    NEEDLESS,
    PYTHON,
    ROOT,
    STAGE,
    TOO_MUCH,
    Fault,
    Program,
)

__all__ = ["THIRTEENTH"]


THIRTEENTH = (
    Program(
        "embedding_ivf",
        (Fault("numpy-weights", LATE, (2,), "all_reduce", COMPUTE),),
        world_size=3,
    ),
    Program("ensemble_beams", (Fault("list-beams", ()),)),
    Program("fsdp2_perplexity", (Fault("reshard", NEEDLESS, place="all_gather"),)),
    Program(
        "gossip_dpsgd",
        (Fault("own-validation", (*MESSAGE, *LATE), (1,), "", COMPUTE, at=EVERY_THIRD),),
        world_size=3,
    ),
    Program(
        "minhash_dedup",
        (Fault("gather-records", (*NEEDLESS, "byte-inflation"), place="all_gather"),),
        world_size=3,
    ),
    Program(
        "nf4_stages",
        (Fault("lazy-unpacking", STAGE, (2,), causes=COMPUTE),),
        world_size=4,
    ),
    Program(
        "pipe_dp_grid",
        (Fault("activation-stats", STAGE, (3,), causes=COMPUTE),),
        world_size=4,
    ),
    Program(
        "rag_frontend",
        (Fault("audit-sync", ROOT, (0,), "broadcast", IDLE, 25),),
        world_size=3,
        always=ROOT,  # only rank 0 talks to clients and reads
    ),
    Program(
        "ring_prefill",
        (Fault("repeat-first", ("redundant", *TOO_MUCH)),),
        world_size=3,
    ),
    Program(
        "shard_search",
        (Fault("all-gather", ("redundant", *TOO_MUCH), place="all_gather"),),
        world_size=4,
        always=ROOT,  # rank 0 looks once more at what all have found
    ),
    Program(
        "tokenise_crawl",
        (Fault("no-extension", LATE, (2, 3), "all_reduce", PYTHON),),
        world_size=4,
    ),
    Program("zero2_flat", (Fault("per-tensor", ("latency-bound", "exposed-communication")),)),
)
"""By name."""
