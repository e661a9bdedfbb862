"""A fourth lot of programs, and what is wrong with each when it is started with its fault.

Written after those of the third lot were judged, by somebody who knew the rules' names and the
first paragraphs of some of their pages, and had seen none of their code.
"""

from __future__ import annotations

from benchmarks.programs.program import (
    COMPUTE,
    EVERY_THIRD,
    IDLE,
    LATE,
    LOADER,
    MESSAGE,
    NEEDLESS,
    ROOT,
    SAVED,
    STAGE,
    Fault,
    Program,
)

__all__ = ["FOURTH"]


FOURTH = (
    Program(
        "averaged_twice",
        (Fault("averaged-twice", (*NEEDLESS, "latency-bound"), place="all_reduce"),),
    ),
    Program("barrier_meter", (Fault("meet-first", (*NEEDLESS, "latency-bound"), place="barrier"),)),
    Program("beam_search_tp", (Fault("beam-by-beam", ("latency-bound",), place="all_reduce"),)),
    Program("dcp_shards", (Fault("slow-disk", LATE, (1,), "", SAVED, 129, at=EVERY_THIRD),)),
    Program(
        "double_grads",
        (
            Fault(
                "sum-in-double",
                ("full-precision-payload", "byte-inflation", "exposed-communication"),
            ),
        ),
    ),
    Program("dqn_replay", (Fault("draw-one-by-one", LATE, (1,), "all_reduce", IDLE),)),
    Program("dtensor_layouts", (Fault("replicated", NEEDLESS, place="all_gather"),)),
    Program("echo_reservoir", (Fault("double", LATE, (1,), "all_reduce", COMPUTE),)),
    Program(
        "encoder_feeds_heads",
        (Fault("calibrate-each-step", (*LATE, "late-receiver"), (2,), "", COMPUTE),),
        world_size=3,
    ),
    Program("fno_slabs", (Fault("no-mkl", LATE, (1,), "all_to_all", COMPUTE),)),
    Program("fsdp2_accumulate", (Fault("sync-each", NEEDLESS, place="reduce_scatter"),)),
    Program(
        "gnn_partition",
        (Fault("unbalanced", (*LATE, *MESSAGE), (1,), "", COMPUTE),),
    ),
    Program(
        "hierarchical_leaders",
        (Fault("quantiles", ROOT, (2,), "", COMPUTE),),
        world_size=4,
    ),
    Program(
        "hot_embeddings",
        (Fault("by-range", ("uneven-all-to-all", *LATE), (0,), "all_to_all", COMPUTE),),
    ),
    Program("iterable_gzip", (Fault("compressed", LATE, (1,), "all_reduce", LOADER),)),
    Program(
        "kmeans_remainder",
        (Fault("remainder", LATE, (1,), "all_reduce", COMPUTE),),
    ),
    Program("pipe_interleaved", (Fault("extra-layers", STAGE, (1,), "send", COMPUTE),)),
    Program(
        "preemption_check",
        (Fault("slow-mount", LATE, (2,), "all_reduce", IDLE, 12),),
        world_size=3,
    ),
    Program(
        "prefetch_thread",
        # Its thread takes the core of the one that trains.
        (Fault("deduplicate", (*LATE, "contention"), (1,), "all_reduce", (*COMPUTE, *IDLE)),),
    ),
    Program(
        "pseudo_labels",
        (Fault("many-views", (*LATE, "late-sender"), (1,), "send", COMPUTE),),
    ),
    Program("sam_two_passes", (Fault("sync-both", NEEDLESS, place="all_reduce"),)),
    Program(
        "shared_validation",
        (Fault("in-turns", ("jitter",), place="all_reduce"),),
        world_size=3,
    ),
    Program(
        "speculative_draft",
        (Fault("reread", ROOT, (0,), "broadcast", COMPUTE),),
        always=ROOT,  # only rank 0 drafts
    ),
    Program(
        "speech_buckets",
        (Fault("unsorted", ("jitter",), place="all_reduce"),),
    ),
    Program(
        "summa_tiles",
        (Fault("text-tiles", ROOT, (1,), "broadcast", IDLE),),
        world_size=4,
    ),
    Program(
        "zigzag_ring",
        (Fault("contiguous", (*LATE, *MESSAGE), (1,), "", COMPUTE),),
    ),
)
"""By name."""
