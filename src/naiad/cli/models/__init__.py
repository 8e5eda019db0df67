"""Verbs that find, make or use the best form of a model."""
