"""A fourteenth lot of programs, and what is wrong with each when it is started with its fault.

Written by somebody who had read neither the rules nor their pages: training of many kinds, a
solver, a join, and a program with which nothing is wrong.
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
    PYTHON,
    TOO_MUCH,
    Fault,
    Program,
)

__all__ = ["FOURTEENTH"]


FOURTEENTH = (
    Program(
        "asr_cursor",
        (Fault("slow-lock", LATE, (1,), "all_reduce", IDLE, 90, at=EVERY_THIRD),),
        world_size=3,
    ),
    Program(
        "batchnorm_census",
        (Fault("each-buffer", ("latency-bound", "exposed-communication"), place="all_reduce"),),
    ),
    # everything of nobody goes to rank 0: it has the most to join
    Program("clickstream_join", (Fault("hash-nobody", LATE, (0,), "all_reduce", COMPUTE),)),
    Program("ddpm_collate", (Fault("legacy-transform", LATE, (1,), "all_reduce", LOADER),)),
    Program(
        "fsdp2_conformer",
        (Fault("debug-print", (*NEEDLESS, "latency-bound"), place="all_gather"),),
    ),
    Program("mamba_microsteps", (Fault("reduce-each", NEEDLESS, place="all_reduce"),)),
    Program("mixer_climate", (Fault("throttled", LATE, (1,), "all_reduce", COMPUTE),)),
    Program(
        "nbody_ring",
        (Fault("old-build", (*MESSAGE, *LATE), (2,), "", COMPUTE),),
        world_size=3,
    ),
    Program("news_scoring", (Fault("early-float", TOO_MUCH, place="all_to_all"),)),
    Program(
        "pipe_documents",
        (Fault("by-paragraph", ("pipeline-bubble",)),),  # both wait for the long micro-batch
        always=("pipeline-bubble",),  # of two stages and eight micro-batches: a ninth of the step
    ),
    Program(
        "reservoir_flow",
        (Fault("broadcast-rock", ("redundant", *TOO_MUCH), place="broadcast"),),
        world_size=3,
    ),
    Program(
        "rnd_explorers",
        (Fault("render-mode", LATE, (2,), "all_reduce", PYTHON),),
        world_size=3,
    ),
    Program(
        "satellite_tiles",
        (Fault("wait-first", ("exposed-communication", "false-overlap"), place="all_reduce"),),
    ),
    Program("unet_cells", (Fault("recompute-all", ()),)),  # all are slower alike
)
"""By name."""
