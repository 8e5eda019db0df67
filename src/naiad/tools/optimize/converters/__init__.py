"""Conversions of a source: what can be tried, and each in a subprocess with limits and a cache."""
