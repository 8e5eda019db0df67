"""The verbs of the `naiad` command: one module each, grouped by what a user does."""
