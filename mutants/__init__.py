"""Mutation testing: break the source in one place at a time and see whether a test fails."""
