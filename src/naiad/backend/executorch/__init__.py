"""The ExecuTorch backend: programs in `.pte` files."""
