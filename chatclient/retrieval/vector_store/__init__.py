"""Vector stores: documents found by similarity, with metadata filters."""
