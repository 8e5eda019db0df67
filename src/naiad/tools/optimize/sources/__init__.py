"""Sources: what a model file is, which tensors it has, and its answers."""

from naiad.tools.optimize.sources.answers import CachedAnswers
from naiad.tools.optimize.sources.declaration import declaration, declare
from naiad.tools.optimize.sources.opening import NamedSamples, open_source, source_digest
from naiad.tools.optimize.sources.reference import reference_runner

__all__ = [
    "CachedAnswers", "NamedSamples", "declaration", "declare", "open_source", "reference_runner", "source_digest",
]  # fmt: skip
