"""Rows of files as tensors of requests."""
