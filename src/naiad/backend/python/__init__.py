"""The Python backend: `model.py` files, executed by worker processes."""
