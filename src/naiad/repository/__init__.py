"""Model repositories: stores of model files, their versions, and the life cycle of each version."""
