"""Shared memory of clients: system and CUDA regions."""
