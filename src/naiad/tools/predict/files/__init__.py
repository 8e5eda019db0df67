"""Which files a job reads and writes, in which formats, and their rows in order."""
