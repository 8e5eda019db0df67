"""The composition root: build everything, run it, end it well."""
