"""Decoders in ONNX with a cache of keys and values: a step of the server computes the next tokens of all requests."""
