"""`naiad perf`, which also runs as `perf_analyzer`."""
