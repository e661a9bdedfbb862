"""A sixteenth lot of programs, and what is wrong with each when it is started with its fault.

Written by somebody who had not read the rules: training, two of inference, a solver, expectation
maximisation; four faults are communication that a better program lacks.
"""

from __future__ import annotations

from benchmarks.programs.program import (
    COMPUTE,
    LATE,
    LOADER,
    MESSAGE,
    NEEDLESS,
    PYTHON,
    ROOT,
    STAGE,
    TOO_MUCH,
    Fault,
    Program,
)

__all__ = ["SIXTEENTH"]


SIXTEENTH = (
    Program("cfg_sampler", (Fault("reencode", LATE, (0,), "all_gather", COMPUTE),)),
    Program("coral_vit", (Fault("watch", ()),)),  # all are slower alike
    Program(
        "dialect_pipe",
        (Fault("beam-decode", STAGE, (2,), "", PYTHON),),
        world_size=3,
        always=("pipeline-bubble",),  # of three stages and six micro-batches: a quarter
    ),
    Program(
        "galaxy_int8",
        (Fault("sorted-scale", LATE, (1,), "all_gather", COMPUTE),),
        world_size=3,
    ),
    Program(
        "hmm_baum_welch",
        (Fault("gather-posteriors", TOO_MUCH, place="all_gather"),),
        world_size=3,
    ),
    Program(
        "kg_relations",
        (Fault("by-relation", ("latency-bound",), place="all_to_all"),),
        world_size=3,
    ),
    # in every step another rank is late, in all the steps each as often
    Program(
        "lichen_vae",
        (Fault("gallery", ("jitter",), place="all_reduce"),),
        world_size=3,
    ),
    Program(
        "market_makers",
        (Fault("tracemalloc", LATE, (2,), "all_reduce", PYTHON),),
        world_size=3,
    ),
    Program(
        "mesh_simulator",
        (Fault("regather", ("redundant",), place="all_gather"),),
        world_size=3,
    ),
    Program(
        "rerank_queries",
        (Fault("spelling", ROOT, (2,), "broadcast", PYTHON),),
        world_size=3,
    ),
    Program(
        "shallow_water_blocks",
        (Fault("wet-dry", (*LATE, *MESSAGE), (1,), "", COMPUTE),),
        world_size=4,
    ),
    # volume is what it costs; that every rank averages the same is what is wrong with it
    Program(
        "tidal_fsdp2",
        (Fault("whole-average", (*NEEDLESS, "byte-inflation"), place="all_gather"),),
    ),
    Program(
        "warehouse_qmix",
        (Fault("film", LATE, (3,), "gather", PYTHON),),
        world_size=4,
    ),
    Program(
        "whale_pairs",
        (Fault("old-archive", LATE, (2, 3), "", LOADER),),
        world_size=4,
    ),
)
"""By name."""
