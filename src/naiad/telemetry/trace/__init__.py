"""Tracing: trace files in Triton's form and OpenTelemetry spans."""
