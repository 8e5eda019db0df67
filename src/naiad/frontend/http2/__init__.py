"""HTTP/2 connections on an event loop: gRPC and REST."""
