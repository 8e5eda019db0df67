"""Measurements of variants on a running server."""

from naiad.tools.analyze.live.configurations import Configurations
from naiad.tools.analyze.live.instrument import LiveInstrument, restore_from_journal
from naiad.tools.analyze.live.journal import journal_path
from naiad.tools.analyze.live.server import OwnServer, RunningServer, Server

__all__ = [
    "Configurations",
    "LiveInstrument",
    "OwnServer",
    "RunningServer",
    "Server",
    "journal_path",
    "restore_from_journal",
]
