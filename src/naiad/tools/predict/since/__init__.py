"""Incremental runs: which input files are new since the last successful run, and what that run has recorded."""
