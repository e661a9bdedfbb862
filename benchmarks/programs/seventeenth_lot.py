"""A seventeenth lot of programs, and what is wrong with each when it is started with its fault.

Written by somebody who knew the rules by name only: ten that train, trees, a decoder, federated
averaging, a server of word vectors. Of three faults the honest verdict is that nobody is to blame.
"""

from __future__ import annotations

from benchmarks.programs.program import (
    COMPUTE,
    EVERY_THIRD,
    LATE,
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

__all__ = ["SEVENTEENTH"]


SEVENTEENTH = (
    Program(
        "click_trees",
        (Fault("by-feature", ("latency-bound",), place="all_reduce"),),
        world_size=3,
    ),
    Program("clinic_rounds", (Fault("pickled", TOO_MUCH, place="all_gather"),), world_size=4),
    Program(
        "ctc_join",
        (Fault("long-speakers", LATE, (2,), "all_reduce", COMPUTE),),
        world_size=3,
    ),
    # that most of the bytes are padding, no trace shows: of a size that all send alike
    Program("feature_shuffle", (Fault("pad-rows", ()),), world_size=3),
    # merging is compute, writing is not
    Program(
        "lora_songs",
        (Fault("merge-often", LATE, (0,), "all_reduce", (*COMPUTE, *SAVED), at=EVERY_THIRD),),
    ),
    # in every step another rank is late, in all the steps each as often
    Program(
        "molecule_graphs",
        (Fault("staggered-gc", ("jitter",), place="all_reduce"),),
        world_size=3,
    ),
    Program(
        "music_stages",
        (Fault("histograms", STAGE, (1,), "", COMPUTE),),
        world_size=3,
        always=("pipeline-bubble",),  # of three stages and five micro-batches: two sevenths
    ),
    Program(
        "protein_recycle",
        (Fault("reshard", (*NEEDLESS, "byte-inflation"), place="all_gather"),),
    ),
    # what is waited for too early would have run beside compute that leaves no core to it
    Program("siglip_ring", (Fault("wait-first", ()),), world_size=3),
    # Two at once: rank 0's measure is the larger by far, the barriers cost little
    Program("sketch_gan", (Fault("watch-and-barrier", LATE, (0,), "", COMPUTE),)),
    Program("story_decode", (Fault("penalty-loop", ()),)),  # all are slower alike
    Program(
        "tank_league",
        (Fault("league-match", ROOT, (0,), "broadcast", PYTHON),),
        world_size=4,
        always=("early-root", *LATE),  # the learner waits while the actors play
    ),
    Program(
        "tumour_lbfgs",
        (
            Fault(
                "sum-in-double",
                ("full-precision-payload", "byte-inflation", "exposed-communication"),
                place="all_reduce",
            ),
        ),
    ),
    Program(
        "word_server",
        (Fault("row-by-row", (*MESSAGE, *LATE), (0,), "", COMPUTE),),
        world_size=3,
        always=(*MESSAGE, *LATE),  # the server waits while the workers compute
    ),
)
"""By name."""
