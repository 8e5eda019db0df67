"""Loading: from a model's files to a served version."""
