"""The gate: a candidate that does not answer as the source is rejected, with the reason."""
