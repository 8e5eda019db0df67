"""Sources: what a model file is, which tensors it has, and its answers."""

from naiad.optimizer.sources.answers import CachedAnswers
from naiad.optimizer.sources.declaration import declaration, declare
from naiad.optimizer.sources.opening import NamedSamples, open_source, source_digest
from naiad.optimizer.sources.reference import reference_runner

__all__ = [
    "CachedAnswers", "NamedSamples", "declaration", "declare", "open_source", "reference_runner", "source_digest",
]  # fmt: skip
