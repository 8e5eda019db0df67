"""Transforms of a request or batch: padding, sequence tensors, shared memory, classes."""
