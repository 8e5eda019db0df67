"""Calls and commands of models to other models."""
