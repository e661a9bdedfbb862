"""Another project's what-ifs, computed with the graph and the replay of ``commtrace.causal``."""
