"""Several server processes behind the same ports."""
