"""Several server processes behind the same ports: a supervisor and its members."""
