"""`naiad check`: report what a server would report about models, without starting one."""

import argparse
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import orjson

from naiad.backend.cores import gpu_count
from naiad.backend.registry import BackendRegistry
from naiad.cli.check.check_load import LoadRules, load_reported
from naiad.cli.parser import Parser, fail
from naiad.config.problem import Problem
from naiad.core.errors import InferError, excerpt
from naiad.options.duration import read_time
from naiad.repository.check_contents import check_contents
from naiad.repository.cloud.url import is_cloud_url, parse_cloud_url
from naiad.repository.model_check import ModelReport, check_path
from naiad.repository.stores.bare_files import bare_backend
from naiad.server.before_load import check_before_load

_DESCRIPTION = """\
Check a model repository, the directory of one model, or a config.pbtxt, and report all problems that a server
would report. From a repository in an object store (s3://, gs://, as://) only the configurations are downloaded.
Without --load, no server is started and no model framework is imported; model files are checked for damage, model.py
for syntax and for modules that are not installed. --load loads every model in its own process.
The exit status is 1 if a model could not be loaded, 2 for an invalid command line.
"""


_MAX_JOBS = 64


def run(argv: Sequence[str]) -> int:
    """Check the given models, print the problems and return the exit status."""
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.load and Path(options.path).is_file() and not bare_backend(Path(options.path)):
        parser.error("--load needs the model: give the repository or the model's directory")
    seconds: Mapping[str, float] = {}
    try:
        reports = _check(
            options.path,
            options.backend_directory,
            strict=options.strict_model_config,
            allow_pickle=options.allow_pickle,
        )
        if options.load:
            rules = LoadRules(
                options.strict_model_config,
                options.load_timeout_secs,
                options.jobs,
                str(options.backend_directory or ""),
                options.allow_pickle,
            )
            seconds = load_reported(options.path, reports, rules)
    except InferError as error:
        return fail("naiad check", error.message)
    if options.json:
        rows = [{"model": report.name, **problem.as_dict()} for report in reports for problem in report.problems]
        print(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
    else:
        print(format_reports(reports, seconds))
        if not options.load:
            print(f"No model was loaded; to load them: naiad check --load {shlex.quote(options.path)}")
    return 0 if all(report.is_ok for report in reports) else 1


def _check(
    path: str, backend_directory: Path | None, *, strict: bool, allow_pickle: bool = False
) -> list[ModelReport]:
    """Check a path or a URL. Raises InferError if a store cannot be read."""
    registry = BackendRegistry(directory=backend_directory)
    backends = registry.names()
    if not is_cloud_url(path):
        reports = check_path(Path(path), known_backends=backends, strict=strict, gpu_count=gpu_count())
        check_contents(reports, allow_pickle=allow_pickle, runtime_of=registry.runtime_of)
        check_before_load(reports)
        return reports
    # Import the cloud clients only for a repository in a cloud.
    from naiad.repository.cloud.cloud_store import write_manifest
    from naiad.repository.open_repository import open_objects

    url = parse_cloud_url(path)
    with tempfile.TemporaryDirectory(prefix="naiad-check-") as home:
        directory = Path(home) / (url.prefix.rpartition("/")[2] or url.bucket)
        directory.mkdir()
        refused = write_manifest(open_objects(url), directory)
        reports = []
        if not refused or any(directory.iterdir()):
            reports = check_path(directory, known_backends=backends, strict=strict, gpu_count=gpu_count())
    for report in reports:
        report.not_tried.append("contents of model files: only configurations are downloaded")
        report.problems = [
            replace(
                problem,
                filename=problem.filename.replace(str(directory), url.text),
                message=problem.message.replace(str(directory), url.text),
                expected=problem.expected.replace(str(directory), url.text),
            )
            for problem in report.problems
        ]
    for name, message in refused.items():
        reports.append(ModelReport(excerpt(name), Path(name), problems=[Problem(message=message)]))
    return reports


def format_reports(reports: Sequence[ModelReport], seconds: Mapping[str, float] = MappingProxyType({})) -> str:
    """Return one line per problem, one per model without problems, and the count.

    `seconds` contains the load time of each loaded model.
    """
    lines = [str(problem) for report in reports for problem in report.problems]
    lines += [f"{report.name}: not tried: {each}" for report in reports for each in report.not_tried]
    lines += [f"{report.name}: {_summary(report, seconds.get(report.name))}" for report in reports if report.is_ok]
    problems = [problem for report in reports for problem in report.problems]
    errors = sum(problem.is_error for problem in problems)
    counts = [_count(errors, "error"), _count(len(problems) - errors, "warning"), _count(len(reports), "model")]
    return "\n".join([*lines, f"{counts[0]}, {counts[1]} in {counts[2]}"])


def _summary(report: ModelReport, seconds: float | None) -> str:
    parts = [report.config.backend or report.config.platform]
    if report.versions:
        parts.append(f"version {', '.join(str(version) for version in report.versions)}")
    if seconds is not None:
        parts.append(f"loaded in {seconds:.2f} s")
    return f"ok ({', '.join(parts)})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _flag(text: str) -> bool:
    if text.lower() in ("true", "1", "false", "0"):
        return text.lower() in ("true", "1")
    raise argparse.ArgumentTypeError(f"'{text}' is neither true nor false")


def _positive(text: str) -> float:
    try:
        seconds = read_time(text, "s")
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds above 0")
    return seconds


def _count_of_jobs(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MAX_JOBS:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 1 to {_MAX_JOBS}")
    return int(text)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(prog="naiad check", description=_DESCRIPTION, epilog="example: naiad check models --load")
    add = parser.add_argument
    add("path", metavar="PATH", help="a repository (a directory or a URL), a model's directory, or a config.pbtxt")
    add("--json", action="store_true", help="print the problems as a JSON list")
    add(
        "--load",
        action="store_true",
        help="load every model that has no error so far, warm-up included, each in a process of its own",
    )
    add("--load-timeout-secs", type=_positive, default=600.0, metavar="S", help="the most a load may take (600)")
    add("--jobs", type=_count_of_jobs, default=1, metavar="N", help="models to load at a time (1)")
    add(
        "--allow-pickle",
        action="store_true",
        help="accept pickles, and load them too with --load, which executes their code, as a server with this flag",
    )
    add(
        "--backend-directory",
        type=Path,
        metavar="DIRECTORY",
        help="a directory of Python-based backends, as of a server",
    )
    add(
        "--strict-model-config",
        type=_flag,
        nargs="?",
        const=True,
        default=False,
        metavar="true|false",
        help="check as a server with --disable-auto-complete-config: a complete config.pbtxt must be there",
    )
    return parser
