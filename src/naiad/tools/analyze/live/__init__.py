"""Measurements of variants on a running server."""

from naiad.tools.analyze.live.configurations import Configurations
from naiad.tools.analyze.live.instrument import LiveInstrument, restore_from_journal
from naiad.tools.analyze.live.journal import journal_path
from naiad.tools.analyze.live.server import AnalyzedServer, OwnServer, RunningServer

__all__ = [
    "AnalyzedServer",
    "Configurations",
    "LiveInstrument",
    "OwnServer",
    "RunningServer",
    "journal_path",
    "restore_from_journal",
]
