"""The attacks, by what they abuse. Importing this package registers them."""

from attack.attacks import connections, documents, frames, header_blocks, memory, requests, workers

__all__ = ["connections", "documents", "frames", "header_blocks", "memory", "requests", "workers"]
