"""Tool search: indexes of tools, and strategies that evict sessions."""
