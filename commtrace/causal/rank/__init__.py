"""What one rank alone tells of the run's graph: its GPUs' streams, and the host that feeds them.

It runs in the process that read the rank's file and is cached with it; nothing here knows of
other ranks.
"""
