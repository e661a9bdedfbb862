"""A seventh lot of programs, and what is wrong with each when it is started with its fault.

Half of the faults hit some ranks, a third waste communication, and of the rest nobody is to
blame. Written by somebody who knew the rules' names, and had seen neither their code nor
their pages.
"""

from __future__ import annotations

from benchmarks.programs.program import (
    COMPUTE,
    IDLE,
    LATE,
    LOADER,
    MESSAGE,
    ROOT,
    TOO_MUCH,
    Fault,
    Program,
)

__all__ = ["SEVENTH"]


SEVENTH = (
    Program(
        "a2c_regions",
        (
            Fault("far-regions", LATE, (0, 2), "all_reduce", IDLE, 28),
            Fault("sync-parameters", ("redundant", "exposed-communication"), place="broadcast"),
        ),
        world_size=4,
    ),
    Program(
        "citation_halos",
        (Fault("fetch-each-epoch", ("redundant", "exposed-communication"), place="all_to_all"),),
    ),
    Program(
        "codon_pipe",
        (Fault("one-microbatch", ("pipeline-bubble",)),),
        always=("pipeline-bubble",),
    ),
    Program(
        "fraud_columns",
        (
            Fault("object-columns", LATE, (1,), "all_reduce", IDLE),
            Fault(
                "auc-on-master",
                LATE,
                (0,),
                "all_reduce",
                (*COMPUTE, *IDLE),
                at=range(3, 15, 3),
            ),
        ),
    ),
    Program("kfac_owners", (Fault("undamped", ROOT, (1,), "broadcast", COMPUTE),)),
    Program("linear_attention", (Fault("queries-first", ()),)),
    Program(
        "nowcast_archive",
        (Fault("flush-in-turn", ("jitter",), place="all_reduce"),),
        world_size=3,
    ),
    Program(
        "ocr_line",
        (Fault("no-index", (*MESSAGE, *LATE), (2,), "send", IDLE),),
        world_size=3,
        always=MESSAGE,  # of three stages one is the slowest
    ),
    Program("page_language", (Fault("padded-tables", LATE, (1,), "all_reduce", LOADER),)),
    Program(
        "pbt_exploit",
        (Fault("share-population", ("redundant", *TOO_MUCH), place="all_gather"),),
        world_size=3,
    ),
    Program("recipe_ranker", (Fault("list-of-arrays", ()),)),
    Program("tree_lstm", (Fault("debugger", LATE, (0,), "all_reduce", IDLE),)),
    Program(
        "ulysses_heads",
        (Fault("swap-tokens", ("latency-bound", "exposed-communication"), place="all_to_all"),),
        world_size=3,
    ),
    Program("vq_codes", (Fault("share-one-hot", TOO_MUCH, place="all_gather"),)),
)
"""By name."""
