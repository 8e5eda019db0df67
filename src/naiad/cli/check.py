"""`naiad check`: say what a server would say about models, without starting one."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import orjson

from naiad.backend.registry import BackendRegistry
from naiad.core.errors import InferError
from naiad.repository.check import ModelReport, check_path
from naiad.repository.cloud.url import is_cloud_url, parse_cloud_url

_DESCRIPTION = """\
Check a model repository, the directory of one model, or a config.pbtxt, and say everything that a server would say
about it. Of a repository in an object store (s3://, gs://, as://) only the configurations are downloaded. No server
is started and no model framework is imported. The exit status is 1 when a model could not be loaded, 2 for a wrong
command line.
"""


def run(argv: Sequence[str]) -> int:
    """Check what the command line names, print the problems and return the exit status."""
    options = _parser().parse_args(argv)
    try:
        reports = _check(options.path, strict=options.strict_model_config)
    except InferError as error:
        print(f"naiad check: {error.message}", file=sys.stderr)
        return 1
    if options.json:
        rows = [{"model": report.name, **problem.as_dict()} for report in reports for problem in report.problems]
        print(orjson.dumps(rows, option=orjson.OPT_INDENT_2).decode())
    else:
        print(format_reports(reports))
    return 0 if all(report.is_ok for report in reports) else 1


def _check(path: str, *, strict: bool) -> list[ModelReport]:
    """Check a path or a URL. Raises InferError when a store cannot be read."""
    backends = BackendRegistry().names()
    if not is_cloud_url(path):
        return check_path(Path(path), known_backends=backends, strict=strict)
    # Only who has a repository in a cloud pays for what it needs.
    from naiad.repository.cloud.outline import write_outline
    from naiad.repository.opening import open_objects

    url = parse_cloud_url(path)
    with tempfile.TemporaryDirectory(prefix="naiad-check-") as home:
        directory = Path(home) / (url.prefix.rpartition("/")[2] or url.bucket)
        directory.mkdir()
        write_outline(open_objects(url), directory)
        reports = check_path(directory, known_backends=backends, strict=strict)
    for report in reports:
        report.problems = [
            replace(
                problem,
                filename=problem.filename.replace(str(directory), url.text),
                message=problem.message.replace(str(directory), url.text),
                expected=problem.expected.replace(str(directory), url.text),
            )
            for problem in report.problems
        ]
    return reports


def format_reports(reports: Sequence[ModelReport]) -> str:
    """Return one line per problem, one per model without problems, and the count."""
    lines = [str(problem) for report in reports for problem in report.problems]
    lines += [f"{report.name}: {_summary(report)}" for report in reports if report.is_ok]
    problems = [problem for report in reports for problem in report.problems]
    errors = sum(problem.is_error for problem in problems)
    counts = [_count(errors, "error"), _count(len(problems) - errors, "warning"), _count(len(reports), "model")]
    return "\n".join([*lines, f"{counts[0]}, {counts[1]} in {counts[2]}"])


def _summary(report: ModelReport) -> str:
    kind = report.config.backend or report.config.platform
    versions = ", ".join(str(version) for version in report.versions)
    return f"ok ({kind}" + (f", version {versions})" if versions else ")")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _flag(text: str) -> bool:
    if text.lower() in ("true", "1", "false", "0"):
        return text.lower() in ("true", "1")
    raise argparse.ArgumentTypeError(f"'{text}' is neither true nor false")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="naiad check", description=_DESCRIPTION)
    parser.add_argument(
        "path", metavar="PATH", help="a repository (a directory or a URL), a model's directory, or a config.pbtxt"
    )
    parser.add_argument("--json", action="store_true", help="print the problems as a JSON list")
    parser.add_argument(
        "--strict-model-config",
        type=_flag,
        nargs="?",
        const=True,
        default=False,
        metavar="true|false",
        help="check as a server with --disable-auto-complete-config: a complete config.pbtxt must be there",
    )
    return parser
