"""Models that run in this machine's own processes."""
