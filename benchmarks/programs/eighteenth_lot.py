"""An eighteenth lot of programs, and what is wrong with each when it is started with its fault.

Written by somebody who knew neither the rules nor the other programs: eleven that train, a flow of
ice, a survey of the sky, serving, evaluation, gossip, a game. Of three faults the honest verdict
is that nobody is to blame.
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
    STAGE,
    TOO_MUCH,
    Fault,
    Program,
)

__all__ = ["EIGHTEENTH"]

EIGHTEENTH = (
    Program("bird_fsdp", (Fault("sync-each", NEEDLESS),)),
    Program("chem_threads", (Fault("python-rings", LATE, (1,), "all_reduce", PYTHON),)),
    # the actors are paced from outside, and the learner has done its dump before they have played
    Program("crane_rl", (Fault("replay-dump", ()),), world_size=3),
    # that the ranks' parts are summed over too large a group, and are zero there, no trace shows
    Program("crop_mesh", (Fault("everybody", TOO_MUCH, place="all_reduce"),), world_size=4),
    Program("fold_tp", (Fault("replicate", (*NEEDLESS, *TOO_MUCH)),)),
    # Two at once: rank 2's double precision is the larger, objects in place of tensors are slow
    Program(
        "fraud_serving",
        (Fault("new-release", LATE, (2,), "", COMPUTE),),
        world_size=3,
        always=ROOT,  # only rank 0 accepts and decides
    ),
    Program(
        "galaxy_valid",
        (Fault("lone-validation", LATE, (0,), "all_reduce", COMPUTE, at=range(6, 15, 5)),),
    ),
    Program(
        "glacier_flow",
        (Fault("check-often", ("latency-bound", *NEEDLESS), place="all_reduce"),),
        world_size=3,
    ),
    Program(
        "moe_translate",
        (Fault("lopsided", (*LATE, "uneven-all-to-all"), (0,), "all_to_all", COMPUTE),),
    ),
    Program(
        "quake_gossip",
        (
            Fault(
                "tidy-memory",
                (*MESSAGE, *LATE),
                (2,),
                "",
                ("garbage-collection", *IDLE),
                at=range(7, 15, 5),
            ),
        ),
        world_size=4,
    ),
    # the ranks are balanced: what they wait in barriers they would wait in DDP's all_reduce
    Program("retina_ema", (Fault("barriers", ()),)),
    Program("seismic_picks", (Fault("raw-archive", LATE, (1,), "all_reduce", LOADER),)),
    # the camera's clock hides twice the bytes
    Program("sky_survey", (Fault("doubles", ()),), world_size=3),
    Program(
        "speech_eval",
        (Fault("sorted", LATE, (1,), "all_reduce", PYTHON),),
        always=LATE,  # one shard's utterances are longer by chance
    ),
    Program(
        "stock_server",
        (Fault("ledger", (*MESSAGE, *LATE), (0,), "", IDLE),),
        world_size=4,
        always=(*MESSAGE, *LATE),  # the workers wait while the server steps
    ),
    Program(
        "tides_tiny",
        (Fault("per-block", ("latency-bound", *NEEDLESS), place="all_reduce"),),
    ),
    Program(
        "weather_stages",
        (Fault("split-by-count", STAGE, (1,), "", COMPUTE),),
        always=STAGE,  # the loss is on rank 1
    ),
)
"""By name."""
