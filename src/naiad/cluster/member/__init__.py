"""A server process of several: it serves the connections that the supervisor passes to it."""
