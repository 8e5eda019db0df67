"""What a change of a configuration may be: by a client, and without a reload."""
