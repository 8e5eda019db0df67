"""Measurements of variants on a running server."""

from naiad.tools.analyze.live.analyzed_server import AnalyzedServer, OwnServer, RunningServer
from naiad.tools.analyze.live.configurations import Configurations
from naiad.tools.analyze.live.instrument import LiveInstrument, restore_from_journal
from naiad.tools.analyze.live.undo_journal import journal_path

__all__ = [
    "AnalyzedServer",
    "Configurations",
    "LiveInstrument",
    "OwnServer",
    "RunningServer",
    "journal_path",
    "restore_from_journal",
]
