"""Model repositories: where models lie, which versions they have, and the life of each version."""
