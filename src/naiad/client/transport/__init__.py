"""The client's connections and calls over HTTP/1.1 and gRPC."""
