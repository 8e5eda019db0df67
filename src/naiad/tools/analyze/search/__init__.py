"""Which points of a space are measured, in which order, and what follows from the measurements."""

from naiad.tools.analyze.search.model_search import MODES, search
from naiad.tools.analyze.search.search_checkpoint import CheckpointError, SearchCheckpoint, fingerprint
from naiad.tools.analyze.search.search_settings import SearchProgress, SearchSettings, within

__all__ = [
    "MODES",
    "CheckpointError",
    "SearchCheckpoint",
    "SearchProgress",
    "SearchSettings",
    "fingerprint",
    "search",
    "within",
]
