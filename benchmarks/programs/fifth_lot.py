"""A fifth lot of programs, and what is wrong with each when it is started with its fault.

Written after those of the fourth lot were judged, by somebody who knew the rules' names only.
"""

from __future__ import annotations

from benchmarks.programs.program import (
    COMPUTE,
    IDLE,
    LATE,
    Fault,
    Program,
)

__all__ = ["FIFTH"]

NEEDLESS = ("redundant", "exposed-communication")  # communication that a better program lacks
ROOT = ("late-root", *LATE)

FIFTH = (
    Program("dino_teacher", (Fault("share-teacher", NEEDLESS, place="broadcast"),)),
    Program("gru_monitor", (Fault("whole-history", LATE, (0,), "all_reduce", (*COMPUTE, *IDLE)),)),
    Program("hard_mining", (Fault("sort-in-python", ROOT, (0,), "broadcast", IDLE),)),
    Program(
        "impala_maps",
        (Fault("map-change", LATE, (2, 3), "all_reduce", IDLE, 100, at=range(3, 15, 4)),),
        world_size=4,
    ),
    Program(
        "keyword_silence",
        (Fault("subnormal-powers", LATE, (1,), "all_reduce", COMPUTE),),
    ),
    Program("radiology_volumes", (Fault("slow-gateway", ()),)),
    Program("sac_normalise", (Fault("each-moment", ("latency-bound",), place="all_reduce"),)),
    Program("sage_neighbours", (Fault("unsorted-edges", LATE, (1,), "all_reduce", COMPUTE),)),
    Program(
        "video_keyframes",
        (Fault("rare-keyframes", ("jitter",), place="all_reduce"),),
    ),
)
"""By name."""
