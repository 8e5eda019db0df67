"""The output of a job in an object store: rows as segments while it runs, one object at its end."""
