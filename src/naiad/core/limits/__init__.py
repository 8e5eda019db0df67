"""Bounds of requests, values and caches."""
