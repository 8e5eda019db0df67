"""Which points of a space are measured, in which order, and what follows from the measurements."""

from naiad.tools.analyze.search.checkpoint import Checkpoint, CheckpointError, fingerprint
from naiad.tools.analyze.search.run import MODES, search
from naiad.tools.analyze.search.settings import SearchProgress, SearchSettings, within

__all__ = [
    "MODES",
    "Checkpoint",
    "CheckpointError",
    "SearchProgress",
    "SearchSettings",
    "fingerprint",
    "search",
    "within",
]
