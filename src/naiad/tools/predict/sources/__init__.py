"""Files whose rows a job reads: one class for each format."""
