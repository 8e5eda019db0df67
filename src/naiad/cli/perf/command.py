"""`naiad perf`: plan, run, report."""

import argparse
import asyncio
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from naiad.cli.parser import check_output, fail
from naiad.cli.perf.allowed_errors import AllowedErrors, allowed_errors, fault_of
from naiad.cli.perf.perf_console import ConsoleProgress
from naiad.cli.perf.perf_flags import BAD_OPTION, make_parser
from naiad.cli.perf.planning import FlagError, make_plan
from naiad.client import ConnectionFailedError
from naiad.core.errors import InferError
from naiad.tools.measure.charts import ChartsMissingError, check_charts
from naiad.tools.measure.comparison import compare
from naiad.tools.measure.result import Result, Row
from naiad.tools.measure.result_json import ResultFileError, from_json, to_json
from naiad.tools.perf.generator.local_generator import MAX_KEPT_BYTES
from naiad.tools.perf.perf_plan import Load, Plan, Protocol, Stop
from naiad.tools.perf.records import Measurement
from naiad.tools.perf.report.latency_csv import write_latency_csv
from naiad.tools.perf.report.perf_page import report
from naiad.tools.perf.report.perf_text import closing_text, comparison_text, settings_text, unstable_text
from naiad.tools.perf.report.profile_export import ProfileExport

if TYPE_CHECKING:
    from naiad.tools.perf.perf_session import Export

WORSE, NOT_STABLE, FAILED = 1, 2, 99
"""Exit statuses; perf_analyzer's but for WORSE, which it does not have."""
ERRORS = 1
"""Exit status: requests failed, more than --max-errors allows."""


def run(argv: Sequence[str]) -> int:
    """Run `naiad perf` and return the exit status."""
    return _run(argv, "naiad perf", is_perf_analyzer=False)


def perf_analyzer() -> int:
    """Run with perf_analyzer's defaults: the command that the package installs for scripts and Model Analyzer."""
    return _run(sys.argv[1:], "perf_analyzer", is_perf_analyzer=True)


def _run(argv: Sequence[str], program: str, *, is_perf_analyzer: bool) -> int:
    flags = make_parser(program).parse_args(list(argv))
    try:
        plan = make_plan(flags, is_perf_analyzer=is_perf_analyzer)
        baseline = _read_baseline(flags.baseline) if flags.baseline else None
        limit_percent = _percent(flags.fail_over)
        allowed = allowed_errors(flags.max_errors, is_perf_analyzer=is_perf_analyzer)
        _check_outputs(flags)
    except (ValueError, ChartsMissingError) as error:
        return fail(program, error, BAD_OPTION)
    progress = ConsoleProgress(plan.measuring.percentile, flags.verbosity, is_quiet=flags.quiet)
    print(settings_text(plan), end="\n\n", flush=True)
    try:
        result = _measure(plan, [program, *argv], progress, flags.profile_export_file)
        status = _report(result, plan, flags, allowed, is_perf_analyzer=is_perf_analyzer)
        if baseline is not None:
            comparison = compare(baseline, result, limit_percent)
            print(comparison_text(comparison))
            status = status or (WORSE if comparison.is_worse_past_limit else 0)
    except ConnectionFailedError as error:
        progress.clear()
        return fail(program, _unreached(error, plan.service.url), FAILED)
    except (InferError, OSError, ValueError, ChartsMissingError) as error:
        progress.clear()
        return fail(program, getattr(error, "message", None) or error, FAILED)
    return status


def _unreached(error: ConnectionFailedError, url: str) -> str:
    from naiad.tools.perf.perf_session import LoadNotSentError

    where = "" if url in error.message else f"{url}: "
    is_reached = isinstance(error, LoadNotSentError)  # The run has read the model from the server.
    return f"{where}{error.message}" + ("" if is_reached else "; give the address of a running server with -u")


def _check_outputs(flags: argparse.Namespace) -> None:
    """Raise ValueError or ChartsMissingError for a report that could not be written after the measurement."""
    outputs = {
        "--json": flags.json,
        "-f": flags.latency_report_file,
        "--html": flags.html,
        "--profile-export-file": flags.profile_export_file,
    }
    for flag, path in outputs.items():
        if path:
            check_output(flag, Path(path))
    if flags.html:
        check_charts()


def _measure(plan: Plan, command: Sequence[str], progress: ConsoleProgress, export_file: str) -> Result:
    from naiad.tools.perf.perf_session import Session

    if not export_file:
        return _run_session(plan, command, progress, None)

    def add(session: Session, load: Load, measurement: Measurement) -> None:
        export.add(session.inputs, load, measurement)

    with ProfileExport(Path(export_file), plan.service, plan.endpoint) as export:
        result = _run_session(plan, command, progress, add)
    if export.unkept:
        print(
            f"{export_file} lacks {export.unkept} requests: a load keeps {MAX_KEPT_BYTES >> 20} MiB of them; "
            "measure for a shorter time",
            file=sys.stderr,
        )
    return result


def _run_session(plan: Plan, command: Sequence[str], progress: ConsoleProgress, export: "Export | None") -> Result:
    from naiad.tools.perf.perf_session import run

    session = run(plan, progress, command=command, export=export)
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run(session)
    return uvloop.run(session)


def _report(
    result: Result, plan: Plan, flags: argparse.Namespace, allowed: AllowedErrors | None, *, is_perf_analyzer: bool
) -> int:
    """Write all reports that were asked for; return the exit status."""
    print(closing_text(result), flush=True)
    if flags.json:
        Path(flags.json).write_text(to_json(result))
    if flags.latency_report_file and result.rows:
        write_latency_csv(
            result, Path(flags.latency_report_file), is_verbose=flags.verbose_csv, has_metrics=bool(plan.metrics_url)
        )
    if flags.html:
        report(result, plan.measuring.latency_limit_us).write(Path(flags.html))
        print(f"\nReport: {flags.html}")
    if result.exit_reason:
        print(f"The run ended early: {result.exit_reason}", file=sys.stderr)
        return FAILED
    faults = [fault for row in result.rows if (fault := fault_of(row, allowed))]
    if faults:
        print("\n".join(faults), file=sys.stderr)
        return FAILED if is_perf_analyzer and flags.max_errors is None else ERRORS
    uses_windows = plan.measuring.stop in (Stop.TIME_WINDOWS, Stop.COUNT_WINDOWS)
    doubtful = [row for row in result.rows if _is_doubtful(row, is_strict=flags.strict)]
    if is_perf_analyzer and plan.measuring.stop is Stop.REQUEST_COUNT and not flags.strict:
        doubtful = [row for row in doubtful if row.errors]  # perf_analyzer does not judge a number of requests
    if doubtful and (flags.strict or is_perf_analyzer or (uses_windows and flags.measurement_mode)):
        print(unstable_text(doubtful))
        return NOT_STABLE
    if not is_perf_analyzer and not flags.quiet:
        for line in _next_lines(plan, flags):
            print(line)
    return 0


def _next_lines(plan: Plan, flags: argparse.Namespace) -> list[str]:
    """Return what a user can do after a measurement."""
    found = [] if flags.html else ["the same with --html report.html for charts"]
    if plan.models:
        name, url = plan.models[0].name, plan.service.url
        is_repository = plan.service.protocol is Protocol.IN_PROCESS
        better = f"naiad analyze {url} --models {name}" if is_repository else f"naiad analyze {name} --url {url}"
        found.append(f"a better configuration: {better}")
    return ["", f"next: {', or '.join(found)}"] if found else []


def _is_doubtful(row: Row, *, is_strict: bool) -> bool:
    return not row.is_stable or (is_strict and row.generator.limited_by == "generator")


def _read_baseline(file: str) -> Result:
    try:
        return from_json(Path(file).read_bytes())
    except (OSError, ResultFileError) as error:
        raise FlagError(f"--baseline {file} cannot be used: {error}; write it with --json") from None


def _percent(text: str) -> float:
    try:
        value = float(text.rstrip("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise FlagError(f"--fail-over is '{text}'; use a percentage, for example 5%")
    return value
