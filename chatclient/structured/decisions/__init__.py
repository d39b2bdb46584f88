"""Decisions by a chat model."""
