"""Sources: what a model file is, which tensors it has, and its answers."""

from naiad.optimizer.sources.opening import NamedSamples, open_source, source_digest

__all__ = ["NamedSamples", "open_source", "source_digest"]
