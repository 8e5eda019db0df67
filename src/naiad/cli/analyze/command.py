"""`naiad analyze`: read the settings, analyse, show the result."""

import asyncio
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from naiad.analyze.live import restore_from_journal
from naiad.analyze.measurement import ServerLostError
from naiad.analyze.report.text import ranking_text
from naiad.analyze.run import Analysis, analyze, restored_url
from naiad.analyze.search import SearchProgress
from naiad.analyze.settings.reader import read_file, read_settings
from naiad.analyze.settings.settings import ModelSettings, Settings
from naiad.analyze.settings.values import SettingsError
from naiad.cli.analyze.flags import COMMANDS, document_of, in_flags, make_parser, parse_model_analyzer
from naiad.cli.parser import BAD_OPTION
from naiad.cli.perf.flags import parse as parse_perf
from naiad.cli.perf.planning import make_plan
from naiad.cli.perf.values import FlagError
from naiad.core.errors import InferError
from naiad.perf.plan import InputSettings, Protocol, Service
from naiad.perf.report.charts import ChartsMissingError

FAILED = 1
_LINE_INTERVAL_S = 10


def run(argv: Sequence[str]) -> int:
    """Run the verb and return the exit status."""
    try:
        if argv and argv[0] in COMMANDS:
            return _analyze(_model_analyzer_settings(argv[0], argv[1:]), is_quiet=False)
        flags = make_parser().parse_args(list(argv))
        if flags.restore:
            return asyncio.run(_restore(Path(flags.restore)))
        if flags.apply and not flags.url:
            raise SettingsError("--apply needs a running server; name it with --url")
        settings = replace(
            read_settings(document_of(flags)), is_applied=flags.apply, capacity_per_s=flags.capacity or 0.0
        )
        return _analyze(settings, is_quiet=flags.quiet)
    except (SettingsError, FlagError) as error:
        is_model_analyzer = bool(argv) and argv[0] in COMMANDS
        print(f"naiad analyze: {error if is_model_analyzer else in_flags(str(error))}", file=sys.stderr)
        return BAD_OPTION
    except (InferError, ServerLostError, ChartsMissingError, OSError, ValueError) as error:
        print(f"naiad analyze: {getattr(error, 'message', None) or error}", file=sys.stderr)
        return FAILED


def _model_analyzer_settings(command: str, arguments: Sequence[str]) -> Settings:
    given, file = parse_model_analyzer(command, arguments)
    document: dict[str, Any] = {"run_config_search_mode": "brute"}  # Model Analyzer's default
    if file:
        document |= read_file(Path(file))
    return read_settings(document | given)


def _analyze(settings: Settings, *, is_quiet: bool) -> int:
    for note in settings.notes:
        print(f"note: {note}", file=sys.stderr)
    inputs = {model.name: _inputs(model) for model in settings.models}
    progress = None if is_quiet else _Progress()
    found = asyncio.run(analyze(settings, inputs, progress))
    if progress:
        progress.clear()
    for each in found:
        _show(each)
    return 0 if all(each.ranking.winner for each in found) else FAILED


def _inputs(model: ModelSettings) -> InputSettings:
    """Return the input data that the flags of `naiad perf` ask for."""
    arguments = ["-m", model.name]
    for name, value in model.perf_flags.items():
        values = value if isinstance(value, list) else [value]
        for each in values:
            arguments += [f"--{name}"] if each is True else [f"--{name}", str(each)]
    return make_plan(parse_perf(arguments, "naiad analyze")).models[0].inputs


def _show(analysis: Analysis) -> None:
    print(f"{', '.join(analysis.models)}\n{ranking_text(analysis.ranking)}")
    if analysis.refused:
        print(f"{len(analysis.refused)} combinations were left out, for example {analysis.refused[0]}")
    for path in analysis.written:
        print(f"written: {path}")
    for difference in analysis.differences.values():
        print(f"\n{difference}")
    if analysis.capacity:
        print(f"\n{analysis.capacity}")
    if analysis.is_applied:
        print("\nThe server now has this configuration.")


async def _restore(journal: Path) -> int:
    url = restored_url(journal)
    protocol = Protocol.GRPC if url.startswith("grpc") else Protocol.HTTP
    models = await restore_from_journal(journal, Service(url, protocol))
    print(f"restored at {url}: {', '.join(models)}")
    return 0


class _Progress:
    """One line that changes in a terminal; elsewhere a line for each phase, and for each 10 seconds."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._phase = ""
        self._line_s = 0.0

    def __call__(self, models: str, where: SearchProgress) -> None:
        line = f"{models}: {where.phase}, {where.done} of about {where.expected} measurements"
        if where.remaining_s:
            line += f", {where.remaining_s:.0f} s left"
        if self._is_terminal:
            sys.stderr.write(f"\r\x1b[2K{line}")
            sys.stderr.flush()
            return
        # "prediction of configuration 1 of 149" is the same phase as "... 2 of 149".
        phase, now_s = re.sub(r"\d+", "", where.phase), time.monotonic()
        if phase != self._phase or now_s - self._line_s >= _LINE_INTERVAL_S:
            print(line, file=sys.stderr, flush=True)
            self._phase, self._line_s = phase, now_s

    def clear(self) -> None:
        """Remove the line."""
        if self._is_terminal:
            sys.stderr.write("\r\x1b[2K")
