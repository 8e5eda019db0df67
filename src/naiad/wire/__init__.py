"""Bytes to events and back, sans-IO: HTTP/2, HPACK cache, gRPC framing, limits."""
