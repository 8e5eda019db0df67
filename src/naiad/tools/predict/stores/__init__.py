"""Object stores as places of files: where they are, how they are found, and how their content is read in order."""
