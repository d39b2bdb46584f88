"""Runs the tool calls of a model's message."""
