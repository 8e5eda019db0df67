"""The memory of models on demand: its budgets, and how what models take of the host and of GPUs is measured."""
