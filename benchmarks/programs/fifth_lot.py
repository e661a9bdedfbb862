"""A fifth lot of programs, and what is wrong with each when it is started with its fault.

Written after those of the fourth lot were judged, by somebody who knew the rules' names only.
"""

from __future__ import annotations

from benchmarks.programs.program import (
    COMPUTE,
    IDLE,
    LATE,
    LOADER,
    NEEDLESS,
    ROOT,
    Fault,
    Program,
)

__all__ = ["FIFTH"]


FIFTH = (
    Program(
        "context_mesh",
        (Fault("word-by-word", LATE, (3,), "all_gather", IDLE),),
        world_size=4,
    ),
    Program(
        "ctr_wide_deep",
        (
            Fault(
                "dense-gradients", ("exposed-communication", "byte-inflation"), place="all_reduce"
            ),
        ),
    ),
    Program("dino_teacher", (Fault("share-teacher", NEEDLESS, place="broadcast"),)),
    Program(
        "dit_fsdp2",
        # two of three: who waits for data may be said of both
        (Fault("cold-cache", (*LATE, "input-bound"), (1, 2), "all_gather", LOADER, 40),),
        world_size=3,
    ),
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
        "speaker_soup",
        (
            Fault(
                "through-rank-0",
                ("emulated-operation", "decomposed-all-reduce", "exposed-communication"),
            ),
        ),
        world_size=3,
    ),
    Program(
        "video_keyframes",
        (Fault("rare-keyframes", ("jitter",), place="all_reduce"),),
    ),
    Program("weather_zarr", (Fault("compress-more", ()),)),
)
"""By name."""
