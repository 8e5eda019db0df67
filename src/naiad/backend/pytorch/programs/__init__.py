"""Programs of PyTorch, by the format of their files."""
