"""JSON fields, media and cache marks shared by several providers."""
