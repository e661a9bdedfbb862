"""A tenth lot of programs, and what is wrong with each when it is started with its fault.

Written after those of the ninth lot were judged, by somebody who had read neither the rules nor
their pages; of kinds that no earlier lot has.
"""

from __future__ import annotations

from benchmarks.programs.program import (
    COMPUTE,
    IDLE,
    LATE,
    MESSAGE,
    NEEDLESS,
    Fault,
    Program,
)

__all__ = ["TENTH"]


TENTH = (
    Program(
        "vocoder_gan",
        (Fault("judge-keeps-gradients", NEEDLESS, place="all_reduce"),),
    ),
    Program("two_tower", (Fault("half-export", LATE, (1,), "all_gather", COMPUTE),)),
    Program(
        "protein_mlm",
        (Fault("count-each-step", LATE, (0,), "all_reduce", (*COMPUTE, *IDLE)),),
    ),
    Program(
        "trajectory_agents",
        (Fault("exact-agents", LATE, (1,), "all_reduce", (*COMPUTE, *IDLE)),),
    ),
    Program("seismic_shots", (Fault("map-each-field", LATE, (1,), "all_reduce", COMPUTE),)),
    Program(
        "reward_ranks",
        (Fault("compare-texts", (*LATE, *MESSAGE), (2,), "send", IDLE),),
        world_size=3,
        always=(*LATE, *MESSAGE),  # the actor waits for the judge and the critic, and they for it
    ),
    Program("gp_conjugate", (Fault("commit-each", LATE, (0,), "all_gather", IDLE),)),
    Program(
        "zero1_master",
        (
            Fault(
                "gather-masters",
                ("full-precision-payload", "byte-inflation", "exposed-communication"),
                place="all_gather",
            ),
        ),
        always=("emulated-operation",),  # as gloo's reduce_scatter is
    ),
    Program(
        "bundle_slam",
        (
            Fault(
                "camera-by-camera",
                ("latency-bound", "exposed-communication"),
                place="all_reduce",
            ),
        ),
    ),
    Program("neural_cde", (Fault("adaptive", ("jitter",), place="all_reduce"),)),
    Program("mixture_density", (Fault("as-the-paper", ()),)),
)
