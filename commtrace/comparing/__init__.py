"""Two runs compared: what changed, where, and whether it is real."""
