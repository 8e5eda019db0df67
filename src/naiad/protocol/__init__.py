"""KServe v2 payloads to requests and back: JSON, binary, gRPC; the one table of error codes."""
