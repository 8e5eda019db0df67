"""Instances of a model and the resources that they share."""
