"""Storage of conversations in a SQL database."""
