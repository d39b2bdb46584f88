"""Advisors that add earlier messages to a prompt and store new ones."""
