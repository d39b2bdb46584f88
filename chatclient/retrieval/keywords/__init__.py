"""Ranks documents and tools by the words that they share with a query."""
