"""Programs as people write them, recorded with and without one of the faults that clusters have."""
