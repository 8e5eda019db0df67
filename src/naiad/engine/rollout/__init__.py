"""Rollouts of model versions: the proxy that splits requests, shadow copies, and the states of all models."""
