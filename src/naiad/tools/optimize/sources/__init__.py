"""Sources: what a model file is, which tensors it has, and its answers."""

from naiad.tools.optimize.sources.reference import reference_runner
from naiad.tools.optimize.sources.source_answers import CachedAnswers
from naiad.tools.optimize.sources.source_declaration import declaration, declare
from naiad.tools.optimize.sources.source_opening import NamedSamples, open_source, source_digest

__all__ = [
    "CachedAnswers", "NamedSamples", "declaration", "declare", "open_source", "reference_runner", "source_digest",
]  # fmt: skip
