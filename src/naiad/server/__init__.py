"""Composition root: builds everything, signals, drain."""
