"""Fuzzing of everything that reads bytes from outside; `python -m fuzz --help`, docs/conformance.md."""
