"""The supervisor: starts server processes, accepts connections, broadcasts control calls."""
