"""Runs a request's coroutine: blocking on the caller's thread, or on an event loop."""
