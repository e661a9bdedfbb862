"""The graph of a whole run: every rank's part, joined by the operations that they share.

``run_graph`` is the face; ``builder`` collects nodes and edges from ``host_part`` (ranks that
communicate from the CPU) and ``gpu_part``; ``replayable`` tells whether replays of it hold.
"""
