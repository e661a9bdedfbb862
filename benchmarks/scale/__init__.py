"""What analysis costs as ranks and operations grow."""
