"""Loading: from a model's files to a version that serves."""
