"""HTTP client of the providers: connections, retries, streams, errors."""
