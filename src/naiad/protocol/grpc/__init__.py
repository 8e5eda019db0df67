"""KServe v2 over gRPC: protobuf messages to requests, responses to messages."""
