"""`naiad analyze`: its own short form and the keys of Model Analyzer's file as flags, the analysis, the result."""

import argparse
import asyncio
import math
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from naiad.cli.parser import BAD_OPTION, FAILED, Parser, check_output, fail
from naiad.cli.perf.perf_flags import parse as parse_perf
from naiad.cli.perf.planning import FlagError, make_plan
from naiad.cli.status_line import StatusLine
from naiad.core.errors import InferError
from naiad.tools.analyze.analysis import Analysis, analyze, restored_url
from naiad.tools.analyze.live import restore_from_journal
from naiad.tools.analyze.point_measurement import ServerLostError
from naiad.tools.analyze.report.analyze_text import ranking_text
from naiad.tools.analyze.search import SearchProgress
from naiad.tools.analyze.settings.analysis_settings import AnalysisSettings, ModelSettings
from naiad.tools.analyze.settings.keys import KEYS, Key
from naiad.tools.analyze.settings.settings_reader import read_file, read_settings
from naiad.tools.analyze.settings.values import SettingsError, seconds
from naiad.tools.measure.charts import ChartsMissingError, check_charts
from naiad.tools.perf.perf_plan import InputSettings, Protocol, ServerTarget

COMMANDS = ("profile", "analyze", "report")
"""Model Analyzer's."""
_DESCRIPTION = """\
Find the configuration of a model that serves best. TARGET is a model repository, a folder of a model in it, or, with
--url, the name of a model on a running server. Variants of the configuration are applied to the running server, so it
does not restart; at the end it has its old configuration again.
"""
_EPILOG = """\
example: naiad analyze models --latency-budget 20ms --output best
naiad analyze profile|analyze|report -f config.yaml takes Model Analyzer's command lines and files.
Exit status: 0 a configuration was found; 1 none meets the constraints, or an error ended it; 2 invalid command line.
"""
_FLAG_OF_KEY = {
    "run_config_search_mode": "--mode",
    "run_config_search_max_instance_count": "--max-instances",
    "run_config_search_max_model_batch_size": "--max-batch-size",
    "duration_seconds": "--seconds",
    "export_path": "--report",
    "output_model_repository_path": "--output",
    **{name: f"--{name.replace('_', '-')}" for name in ("latency_budget", "min_throughput", "objectives")},
    **{name: f"--{name.replace('_', '-')}" for name in ("concurrency", "request_rate", "batch_sizes")},
}
"""The flag that sets a key of Model Analyzer's file, for errors."""
_DATA_FLAGS = ("input-data", "shape", "input-bound", "string-data", "string-length", "request-parameter")


def make_parser() -> Parser:
    """Return the parser of naiad's own form."""
    parser = Parser(
        prog="naiad analyze",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", nargs="?", default="", metavar="TARGET", help="repository, model folder, or model")
    parser.add_argument(
        "-u", "--url", default="", metavar="URL", help="running server: http://HOST:PORT or grpc://..."
    )
    parser.add_argument("--models", default="", metavar="A,B", help="models of the repository; default all")
    wanted = parser.add_argument_group("what is wanted")
    wanted.add_argument("--latency-budget", default="", metavar="TIME", help="limit of the p99 latency, such as 20ms")
    wanted.add_argument("--min-throughput", metavar="N", help="inferences/s that are needed")
    wanted.add_argument("--objectives", default="", metavar="A,B", help="metrics; default perf_throughput")
    wanted.add_argument("--capacity", type=float, metavar="N", help="say which machine serves N requests/s")
    search = parser.add_argument_group("search")
    search.add_argument("--mode", metavar="MODE", help="predict (default), brute, quick or optuna")
    search.add_argument("--concurrency", metavar="LIST", help="requests outstanding: 4 or 1,8; default found")
    search.add_argument("--request-rate", metavar="LIST", help="requests/s instead")
    search.add_argument("-b", "--batch-sizes", metavar="LIST", help="rows in a request; default 1")
    search.add_argument("--max-instances", metavar="N", help="default the number of cores, at most 5")
    search.add_argument("--max-batch-size", metavar="N", help="default 128")
    search.add_argument("--seconds", metavar="S", help="length of a measurement; default 5")
    search.add_argument("--time-limit", default="", metavar="TIME", help="of the whole analysis, such as 10m")
    data = parser.add_argument_group("input data, as for naiad perf")
    for name in _DATA_FLAGS:
        data.add_argument(f"--{name}", action="append", metavar="VALUE")
    output = parser.add_argument_group("output")
    output.add_argument("-o", "--output", default="", metavar="DIR", help="repository for the configuration found")
    output.add_argument("--report", default="analysis", metavar="DIR", help="folder of the reports; default analysis")
    output.add_argument("--apply", action="store_true", help="leave the running server with the best configuration")
    output.add_argument("--restore", default="", metavar="FILE", help="undo what an interrupted analysis has left")
    output.add_argument("-q", "--quiet", action="store_true", help="no progress display")
    return parser


def document_of(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the flags of naiad's own form as keys of Model Analyzer's file. Raises SettingsError."""
    document: dict[str, Any] = {
        "run_config_search_mode": flags.mode,
        "latency_budget": flags.latency_budget or None,
        "min_throughput": flags.min_throughput,
        "objectives": flags.objectives or None,
        "concurrency": flags.concurrency,
        "request_rate": flags.request_rate,
        "batch_sizes": flags.batch_sizes,
        "run_config_search_max_instance_count": flags.max_instances,
        "run_config_search_max_model_batch_size": flags.max_batch_size,
        "duration_seconds": flags.seconds,
        "export_path": flags.report,
        "output_model_repository_path": flags.output or None,
    }
    document["perf_analyzer_flags"] = {
        name: value for name in _DATA_FLAGS if (value := getattr(flags, name.replace("-", "_"))) is not None
    }
    document |= _target(flags)
    return {key: value for key, value in document.items() if value is not None}


def in_flags(message: str) -> str:
    """Return an error about a key of the document, or of a model in it, as one about the flag that sets it."""
    key, _, rest = message.partition(" ")
    name = key.rpartition(".")[2] if key.startswith("profile_models.") else key
    return f"{_FLAG_OF_KEY.get(name, key)} {rest}"


def _target(flags: argparse.Namespace) -> dict[str, Any]:
    """Raises SettingsError for a target that is missing, a file, or a folder without models."""
    if flags.url:
        if not (flags.target or flags.models):
            raise SettingsError(f"TARGET is missing; name a model, as in naiad analyze resnet --url {flags.url}")
        is_grpc = flags.url.startswith("grpc")
        protocol = "grpc" if is_grpc else "http"
        return {
            "triton_launch_mode": "remote",
            "client_protocol": protocol,
            f"triton_{protocol}_endpoint": flags.url,
            "profile_models": flags.models or flags.target or None,
        }
    path = Path(flags.target)
    _check_folder(flags.target, path)
    is_model = any(path.glob("*/")) and (path / "config.pbtxt").is_file()
    if is_model or (path.is_dir() and any(part.name.isdigit() for part in path.iterdir() if part.is_dir())):
        return {"model_repository": str(path.parent), "profile_models": path.name}
    models = flags.models or ",".join(sorted(part.name for part in path.iterdir() if part.is_dir()))
    if not models:
        raise SettingsError(f"TARGET {path} has no models; a repository has a folder of each: model/1/model.onnx")
    return {"model_repository": str(path), "profile_models": models}


def _check_folder(target: str, path: Path) -> None:
    if not target:
        raise SettingsError("TARGET is missing; name a model repository, as in naiad analyze models")
    if path.is_file():
        raise SettingsError(
            f"TARGET {path} is a file; copy it to models/{path.stem}/1/model{path.suffix} and name models/{path.stem}"
        )
    if not path.is_dir():
        raise SettingsError(f"TARGET {path}: no such folder; name a model repository, or add the --url of a server")


def parse_model_analyzer(command: str, arguments: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the keys that Model Analyzer's flags set, and the file that `-f` names."""
    parser = Parser(prog=f"naiad analyze {command}")
    for name, key in KEYS.items():
        if key.kind != "mapping" or name in ("profile_models",):
            _add_key(parser, name, key)
    for flag in ("-v", "--verbose", "-q", "--quiet"):
        parser.add_argument(flag, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--mode", choices=("online", "offline"), help=argparse.SUPPRESS)
    parser.add_argument("--analysis-models", help=argparse.SUPPRESS)
    values = {name: value for name, value in vars(parser.parse_args(list(arguments))).items() if name in KEYS}
    given = {name: value for name, value in values.items() if value is not None}
    return given, given.pop("config_file", "") or ""


def _add_key(parser: argparse.ArgumentParser, name: str, key: Key) -> None:
    flags = [f"--{name.replace('_', '-')}", *([f"-{key.letter}"] if key.letter else [])]
    help_text = (key.help or None) if key.has_effect else argparse.SUPPRESS
    if key.kind == "flag":
        parser.add_argument(*flags, dest=name, action="store_const", const=True, help=help_text)
    else:
        parser.add_argument(*flags, dest=name, metavar=key.kind.upper(), help=help_text)


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
        if flags.capacity is not None and not 0 < flags.capacity < math.inf:
            raise SettingsError(f"--capacity is {flags.capacity:g}; use a number of requests/s above 0")
        settings = replace(
            read_settings(document_of(flags)),
            is_applied=flags.apply,
            capacity_per_s=flags.capacity or 0.0,
            time_limit_s=seconds(flags.time_limit, "--time-limit") if flags.time_limit else 0.0,
        )
        return _analyze(settings, is_quiet=flags.quiet)
    except (SettingsError, FlagError) as error:
        is_model_analyzer = bool(argv) and argv[0] in COMMANDS
        return fail("naiad analyze", error if is_model_analyzer else in_flags(str(error)), BAD_OPTION)
    except (InferError, ServerLostError, ChartsMissingError, OSError, ValueError) as error:
        return fail("naiad analyze", getattr(error, "message", None) or error)


def _model_analyzer_settings(command: str, arguments: Sequence[str]) -> AnalysisSettings:
    given, file = parse_model_analyzer(command, arguments)
    document: dict[str, Any] = {"run_config_search_mode": "brute"}  # Model Analyzer's default
    if file:
        document |= read_file(Path(file))
    return read_settings(document | given)


def _analyze(settings: AnalysisSettings, *, is_quiet: bool) -> int:
    _check_outputs(settings)
    for note in settings.notes:
        print(f"note: {note}", file=sys.stderr)
    is_shared = len(settings.models) > 1
    inputs = {model.name: replace(_inputs(model), is_shared=is_shared) for model in settings.models}
    progress = None if is_quiet else _Progress()
    found = asyncio.run(analyze(settings, inputs, progress))
    if progress:
        progress.clear()
    for each in found:
        _show(each)
    if any(each.ranking.is_interrupted for each in found):
        return 128 + signal.SIGINT
    return 0 if all(each.ranking.winner for each in found) else FAILED


def _check_outputs(settings: AnalysisSettings) -> None:
    """Raise SettingsError or ChartsMissingError for what could not be written after the measurements."""
    if settings.writes_summary:
        check_charts()
    folders = {
        "export_path": settings.export_folder,
        "output_model_repository_path": settings.output_repository,
        "checkpoint_directory": settings.checkpoint_folder,
    }
    for key, folder in folders.items():
        if folder:
            try:
                check_output(key, Path(folder), is_folder=True)
            except ValueError as error:
                raise SettingsError(str(error)) from None


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
    models = await restore_from_journal(journal, ServerTarget(url, protocol))
    print(f"restored at {url}: {', '.join(models)}")
    return 0


class _Progress:
    """Shows how many measurements are made, and the time left."""

    def __init__(self) -> None:
        self._status = StatusLine()

    def __call__(self, models: str, where: SearchProgress) -> None:
        line = f"{models}: {where.phase}, {where.done} of about {where.expected} measurements"
        if where.remaining_s:
            line += f", {'at most ' if where.is_at_most else ''}{where.remaining_s:.0f} s left"
        # "prediction of configuration 1 of 149" is the same phase as "... 2 of 149".
        self._status.show(line, re.sub(r"\d+", "", where.phase))

    def clear(self) -> None:
        """Remove the line."""
        self._status.clear()
