"""Training programs by people who knew nothing of commtrace, for ranks on real GPUs."""
