"""Benchmarks: the same models served by naiad and by its peers, loaded by the same tools. `python -m bench --help`."""
