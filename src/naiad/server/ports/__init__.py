"""The ports of a server: addresses, listening sockets, TLS, and the files that TLS and access control read."""
