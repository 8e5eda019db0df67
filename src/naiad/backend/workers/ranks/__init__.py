"""Instances whose model is distributed over several worker processes, on one or several machines."""
