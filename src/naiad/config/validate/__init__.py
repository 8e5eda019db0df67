"""Checks of a model configuration, with Triton's messages."""
