"""Sessions: event logs of conversations, with compaction."""
