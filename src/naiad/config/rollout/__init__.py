"""Rollouts of model versions: the declaration, and the pure decisions about one."""
