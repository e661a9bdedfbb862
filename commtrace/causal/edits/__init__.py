"""What if: edits of a run's graph, each a column of lags or the few of them that change.

Of the whole run, of one rank's host and copies, and of waits; ``bounds`` has what an edit saves
at most, so that few have to be replayed.
"""
