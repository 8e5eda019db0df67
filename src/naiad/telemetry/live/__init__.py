"""What the live stream shows: counters of versions, the last requests of one, failures, and lines of the log."""
