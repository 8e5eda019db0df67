"""Several server processes behind the same ports: one supervisor, and members that serve."""
