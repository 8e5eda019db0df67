"""Sources: what a model file is, which tensors it has, and its answers."""

from naiad.optimizer.sources.opening import open_source

__all__ = ["open_source"]
