"""A job on several machines: its rows in parts, workers that execute them, and the cluster that has the workers."""
