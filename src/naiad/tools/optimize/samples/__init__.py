"""Samples of inputs: read from arrays, files and generators, and kept on disk."""
