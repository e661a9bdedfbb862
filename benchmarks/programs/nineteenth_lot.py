"""A nineteenth lot of programs, and what is wrong with each when it is started with its fault.

Written by somebody who knew neither the rules nor the other programs: fourteen that train, among
them four kinds of parallelism, and a flow, a farm of tasks, k-means, factors, and dust. Of four
faults the honest verdict is that nobody is to blame: three of them cost nothing.
"""

from __future__ import annotations

from benchmarks.programs.program import (
    COMPUTE,
    IDLE,
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

__all__ = ["NINETEENTH"]

NINETEENTH = (
    # every rank reads slowly, and as slowly: it costs much, but no rank and no communication does
    Program("census_sqlite", (Fault("no-index", ()),)),
    # the averaging of the critic's gradients in the generator's step is of no use, but no trace
    # shows that they are thrown away: more bytes and more of them exposed
    Program("digits_gan", (Fault("critic-too", (*NEEDLESS, *TOO_MUCH), place="all_reduce"),)),
    Program(
        "docking_farm",
        (Fault("parse-in-loop", ROOT, (0,), "scatter", PYTHON),),
        world_size=3,
        always=ROOT,  # rank 0 prepares the shares alone
    ),
    # rank 1 computes the longest, since the pairs of its sector are the most; it is uneven, too
    Program(
        "dust_cloud",
        (Fault("clump", (*LATE, "uneven-all-to-all"), (1,), "all_to_all", COMPUTE),),
        world_size=4,
    ),
    # it saves after every fourth optimizer step, so the next step is the one that is late
    Program(
        "hail_trainer",
        (Fault("save-often", LATE, (0,), "all_reduce", SAVED, at=range(5, 29, 4)),),
    ),
    # the two of a replica are late together, for the other replica
    Program(
        "kitchen_tp",
        (Fault("slow-mount", LATE, (2, 3), "all_reduce", LOADER),),
        world_size=4,
    ),
    Program(
        "legal_pipe",
        (Fault("collapse-monitor", STAGE, (1,), "", COMPUTE),),
        world_size=3,
        always=STAGE,  # the bubble, and the head is on rank 2
    ),
    # twice the bytes in the same number of messages, for no use; that they are exposed is as true
    Program(
        "monsoon_hook",
        (Fault("in-double", (*TOO_MUCH, "full-precision-payload"), place="all_reduce"),),
    ),
    # two at once, for the same reason
    Program(
        "moth_distill",
        (Fault("cache-miss", LATE, (1, 2), "all_reduce", COMPUTE),),
        world_size=3,
    ),
    # the gathered are gradients: never twice the same, but a sum of squares would do
    Program(
        "poem_fsdp",
        (Fault("full-norms", NEEDLESS),),
        always=("exposed-communication",),  # small blocks: what FSDP gathers is exposed, too
    ),
    # a thread stores what was saved; the snapshot takes some milliseconds in every fourth step
    Program("protein_zero", (Fault("background-save", ()),)),
    Program("rain_local", (Fault("every-step", NEEDLESS, place="all_reduce"),)),
    # nobody waits for rank 2, which waits for the others with the fault and without
    Program(
        "reef_monitor",
        (Fault("slow-plots", ()),),
        world_size=3,
        always=(*MESSAGE, *LATE),
    ),
    Program(
        "river_graph",
        (Fault("delta", (*MESSAGE, *LATE), (2,), "", COMPUTE),),
        world_size=4,
    ),
    # the loader of rank 1 unpacks in 0-based step 0, 5, 10 ...
    Program(
        "snow_shards",
        (Fault("packed", LATE, (1,), "all_reduce", LOADER, at=range(6, 31, 5)),),
    ),
    Program(
        "stars_kmeans",
        (Fault("silhouette", ROOT, (0,), "broadcast", (*COMPUTE, *IDLE)),),
        world_size=3,
    ),
    # spectra are transposed there and back; what is not needed could not have been hidden either
    Program(
        "turbine_fft",
        (Fault("natural-order", NEEDLESS, place="all_to_all"),),
        always=("exposed-communication",),  # a transpose has nothing to hide behind
    ),
    # pickled residuals in place of two numbers: nothing is gathered twice
    Program("wine_als", (Fault("residual-objects", (*NEEDLESS, *TOO_MUCH)),)),
    # six tiny messages more in a step: a millisecond or two of it
    Program("xray_scaler", (Fault("chatty", ()),)),
)
"""By name."""
