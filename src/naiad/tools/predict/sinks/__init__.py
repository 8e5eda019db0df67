"""Files that a job writes: one class for each format."""
