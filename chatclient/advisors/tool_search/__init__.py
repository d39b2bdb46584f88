"""Tool loop in which the model searches for the tools it needs."""
