"""The objects of a cloud: credentials, connections, listing, reading, writing, and what went wrong."""
