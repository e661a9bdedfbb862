"""An eighth lot of programs, and what is wrong with each when it is started with its fault.

Half of the faults hit some ranks, a quarter waste communication, and of the rest nobody is to
blame, or the ranks take turns. Written by somebody who knew the rules' names, and had seen
neither their code nor their pages.
"""

from __future__ import annotations

from benchmarks.programs.program import (
    COMPUTE,
    IDLE,
    LATE,
    MESSAGE,
    PYTHON,
    STAGE,
    TOO_MUCH,
    Fault,
    Program,
)

__all__ = ["EIGHTH"]


EIGHTH = (
    Program(
        "callback_trainer",
        (Fault("post-from-each-node", LATE, (0, 2), "all_reduce", IDLE, 30),),
        world_size=4,
    ),
    Program("caption_features", (Fault("backtracking", LATE, (1,), causes=PYTHON),)),
    Program("cohort_groups", (Fault("new-groups-each-round", ()),), world_size=4),
    Program(
        "embedding_server",
        (Fault("journal-rows", (*MESSAGE, *LATE), (2,), "send", PYTHON),),
        world_size=3,
        always=MESSAGE,  # the trainers wait for the server, and it for them
    ),
    Program(
        "genome_fsdp2",
        (Fault("shard-each-module", ("latency-bound", "exposed-communication")),),
    ),
    Program("kv_cache_tp", (Fault("decode-from-start", LATE, (0,), "all_reduce", PYTHON),)),
    Program("long_audio", (Fault("gather-recording", TOO_MUCH, place="all_gather"),)),
    Program("multiscale_detector", (Fault("own-sizes", ("jitter",), place="all_reduce"),)),
    Program(
        "noise_scale",
        (
            Fault(
                "example-by-example",
                LATE,
                (0,),
                "all_reduce",
                COMPUTE,
                at=range(1, 15, 3),
            ),
        ),
    ),
    Program("powersgd_lm", (Fault("compress-on-fast-link", ()),)),
    Program(
        "scenario_planner",
        (Fault("config-each-step", ("redundant", "exposed-communication"), place="broadcast"),),
    ),
    Program(
        "zero_bubble",
        (Fault("probe-middle-blocks", STAGE, (1,), "send", COMPUTE),),
        always=("pipeline-bubble",),  # a few micro-batches do not fill it
    ),
)
"""By name."""
