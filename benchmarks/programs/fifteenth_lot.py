"""A fifteenth lot of programs, and what is wrong with each when it is started with its fault.

Written by somebody who had read neither the rules nor their pages: training of many kinds, two
solvers, and three programs that are slow on all ranks alike.
"""

from __future__ import annotations

from benchmarks.programs.program import (
    COMPUTE,
    LATE,
    LOADER,
    MESSAGE,
    PYTHON,
    ROOT,
    TOO_MUCH,
    Fault,
    Program,
)

__all__ = ["FIFTEENTH"]


FIFTEENTH = (
    Program(
        "cell_segment_grid",
        (Fault("probe", LATE, (3,), "all_reduce", COMPUTE),),
        world_size=4,
    ),
    Program("chat_lengths", (Fault("shuffle", ("jitter",), place="all_reduce"),), world_size=3),
    Program(
        "decode_flow_train",
        (Fault("block-loop", (*MESSAGE, *LATE), (1,), "", PYTHON),),
        world_size=3,
        always=(*MESSAGE, "pipeline-bubble"),  # three unlike stages: one is the slowest
    ),
    Program("enkf_ozone", (Fault("gather-members", TOO_MUCH, place="all_gather"),), world_size=3),
    # the object that never changes is pickled anew: by the root, who is late
    Program("lexicon_ner", (Fault("resync", ("redundant", "late-root"), place="broadcast"),)),
    Program("membrane_pairs", (Fault("rebuild", ()),)),  # all are slower alike
    Program(
        "multigrid_ice",
        (Fault("gauss-seidel", ROOT, (0,), "broadcast", PYTHON),),
        world_size=3,
    ),
    Program(
        "node2vec_walkers",
        (Fault("by-degree", (*LATE, "uneven-all-to-all"), (0,), "all_reduce", COMPUTE),),
        world_size=3,
    ),
    Program(
        "pipe_patches",
        (Fault("crumbs", ()),),  # of 16 micro-batches each is too small
        always=("pipeline-bubble",),  # of two stages and four micro-batches: a fifth of the step
    ),
    Program("polymer_fsdp2", (Fault("wrap-leaves", ("latency-bound",), place="all_gather"),)),
    Program(
        "price_history",
        (Fault("keep-history", LATE, (1,), "all_reduce", PYTHON),),
        world_size=3,
    ),
    Program("rotary_heads", (Fault("head-loop", ()),)),  # all are slower alike
    Program("soundscape_tags", (Fault("stretch", LATE, (1,), "all_reduce", LOADER),)),
    Program("tox_norms", (Fault("param-stats", ("latency-bound", "redundant")),)),
)
"""By name."""
