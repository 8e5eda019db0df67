"""Statistics, metrics, tracing and logs."""
