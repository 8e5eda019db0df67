"""gRPC's server reflection: what clients learn about the services and messages of the server."""
