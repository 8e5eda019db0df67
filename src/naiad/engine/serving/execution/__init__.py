"""Batches are executed: on threads, on the event loop, or by worker processes, also after a failure."""
