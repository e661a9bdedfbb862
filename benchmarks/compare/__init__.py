"""Whether comparisons are right: pairs without a change, and with one that is known."""
