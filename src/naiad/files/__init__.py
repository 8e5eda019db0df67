"""Files that outlive a process: journals, replacement at once, locks, digests, and the removal of what is left."""
