"""Which points of a space are measured, in which order, and what follows from the measurements."""

from naiad.tools.analyze.search.checkpoint import CheckpointError, SearchCheckpoint, fingerprint
from naiad.tools.analyze.search.run import MODES, search
from naiad.tools.analyze.search.settings import SearchProgress, SearchSettings, within

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
