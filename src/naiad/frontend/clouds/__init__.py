"""The endpoints that clouds expect of a container."""
