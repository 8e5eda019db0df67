"""Encoding and decoding of KServe v2 payloads (JSON, binary, gRPC), and the table of status codes."""
