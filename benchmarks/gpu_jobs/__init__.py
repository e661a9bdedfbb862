"""Training jobs on GPUs, simulated event by event, and what commtrace says of their traces."""
