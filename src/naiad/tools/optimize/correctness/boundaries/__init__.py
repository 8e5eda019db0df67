"""Inputs at the places where the answers of a source jump: thresholds of its inputs, and classes that nearly tie."""
