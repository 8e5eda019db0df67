"""Instances of any backend in worker processes: `isolation: process`."""
