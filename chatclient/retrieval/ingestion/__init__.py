"""Ingestion: reads files, divides them into chunks, and keeps them in a vector store."""
