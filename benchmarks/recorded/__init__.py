"""Faults that really happened: recorded with gloo on this machine, with and without them."""
