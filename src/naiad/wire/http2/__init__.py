"""HTTP/2 (RFC 9113) without I/O: frames, header compression, streams, windows, connections."""
