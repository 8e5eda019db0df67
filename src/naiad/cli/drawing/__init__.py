"""Drawings of pipelines."""
