"""Ensembles: models made up of other models."""
