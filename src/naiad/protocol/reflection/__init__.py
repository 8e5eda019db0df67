"""gRPC's server reflection: what the server tells clients about its services and messages."""
