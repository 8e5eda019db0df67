"""Attacks on a real server: each is a bounded loop with limits on what it may cost. `python -m attack --help`."""
