"""JSON about the server and its models: control, statistics, the live stream, the OpenAPI document."""
