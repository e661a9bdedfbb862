"""A sixth lot of programs, and what is wrong with each when it is started with its fault.

Scientific and systems code for the most part: solvers, decompositions of a domain, servers,
parallelism written out by hand. Written by somebody who knew the rules' names, and had seen
neither their code nor their pages.
"""

from __future__ import annotations

from benchmarks.programs.program import (
    COMPUTE,
    IDLE,
    LATE,
    MESSAGE,
    ROOT,
    STAGE,
    TOO_MUCH,
    Fault,
    Program,
)

__all__ = ["SIXTH"]


SIXTH = (
    Program("anomaly_mode", (Fault("detect-anomaly", ()),)),
    Program(
        "cem_planner",
        # So many lists are made that Python's garbage collector has as much to do.
        (
            Fault(
                "rank-in-python", ROOT, (0,), "broadcast", (*IDLE, *COMPUTE, "garbage-collection")
            ),
        ),
    ),
    Program("drift_monitor", (Fault("keeps-all-rounds", LATE, (0,), "all_reduce", COMPUTE),)),
    Program("gmres_arnoldi", (Fault("dot-by-dot", ("latency-bound",), place="all_reduce"),)),
    Program("moe_capacity", (Fault("pad-to-all", TOO_MUCH, place="all_to_all"),)),
    Program("ntk_blocks", (Fault("thin-chunks", ("latency-bound", "exposed-communication")),)),
    Program("parallel_tempering", (Fault("swap-fields", TOO_MUCH, place="all_gather"),)),
    Program("pipe_decode", (Fault("no-cache", STAGE, (1,), "", COMPUTE),)),
    Program(
        "plume_decay",
        (Fault("one-by-one", (*LATE, *MESSAGE), (1,), "", (*COMPUTE, *IDLE)),),
    ),
    Program("shard_snapshots", (Fault("slow-disks", ()),)),
    Program(
        "sim_feeder",
        (Fault("draws-each-batch", ("late-receiver",), (1,), "", IDLE),),
        always=MESSAGE,
    ),
    Program("vector_search", (Fault("all-scores", TOO_MUCH, place="all_to_all"),)),
)
