"""Who is late, why, and what it costs the run."""
