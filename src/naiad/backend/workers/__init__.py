"""Hosting of worker processes: what the Python backend and isolated backends have in common."""
