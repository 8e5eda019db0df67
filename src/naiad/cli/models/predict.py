"""`naiad predict`: the job of the command line, its progress, and its summary."""

import argparse
import logging
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from naiad.cli.parser import BAD_OPTION, FAILED, Parser, check_output, fail, parse_header, read_columns, time_in
from naiad.cli.status_line import StatusLine
from naiad.client import ConnectionFailedError, InferError
from naiad.core.errors import excerpt
from naiad.tools.predict import JobProgress, PredictJob, Summary, predict
from naiad.tools.predict.files.input_files import find_files
from naiad.tools.predict.files.row_formats import INPUT_SUFFIXES, OUTPUT_SUFFIXES, check_suffix, python_to_look
from naiad.tools.predict.job_output import written_files
from naiad.tools.predict.prediction_job import DEFAULT_TIMEOUT_S
from naiad.tools.predict.since.selection import state_of
from naiad.tools.predict.stores.store_place import is_store_url, split_url

_NAMED_FIELD = re.compile(r"\b(ray)(?: is)? '|^(since|state) is '")
SOME_FAILED = 3
"""Exit status when the output is complete and some of its rows have no prediction."""
"""Between lines of progress where the terminal cannot change one."""
_DESCRIPTION = f"""\
Run MODEL over all rows of files and write one row of output for each. TARGET is a model repository, whose model is
loaded in this process with its configuration, or the address of a running server: http://HOST:PORT, grpc://HOST:PORT.
Inputs are {", ".join(INPUT_SUFFIXES)} files, patterns, or a folder with a file for each row, such as pictures.
A run that was interrupted continues when the same command runs again.
"""
_EPILOG = """\
example: naiad predict models classifier --input data.csv --key id --output labels.jsonl
Exit status: 0 all rows have a prediction; 1 none has, or an error ended the run; 2 invalid command line; 3 some rows
failed, and OUTPUT.rejected.jsonl has the reasons.
"""


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        prog="naiad predict",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("target", metavar="TARGET", help="model repository, or address of a server")
    add("model", metavar="MODEL", help="name of the model")
    add("-i", "--input", nargs="+", action="extend", required=True, metavar="FILE", help="files, patterns or folders")
    add("-o", "--output", required=True, metavar="FILE", help=f"a file: {', '.join(OUTPUT_SUFFIXES)}")
    add("-x", "--model-version", default="", metavar="N", help="version of the model; default the newest")
    columns = parser.add_argument_group("columns")
    add = columns.add_argument
    add(
        "--column",
        action="append",
        default=[],
        metavar="COLUMN=INPUT",
        help="column of the files for an input of the model, where the names differ; several are its elements",
    )
    add("--key", action="append", default=[], metavar="COLUMN", help="column of the files that the output repeats")
    add("--outputs", default="", metavar="A,B", help="outputs of the model to write; default all")
    running = parser.add_argument_group("running")
    add = running.add_argument
    add("--rows-per-request", type=int, default=0, metavar="N", help="default max_batch_size of the model")
    add("--concurrency", type=int, default=0, metavar="N", help="requests at once; default 2 for each instance")
    add("--max-failed-rows", type=int, metavar="N", help="stop with an error when more rows fail; default no limit")
    add(
        "--since",
        default="",
        metavar="last|TIME",
        help="only files that no run before has predicted, or changed since a time: 2026-03-01T00:00:00Z",
    )
    add("--state", default="", metavar="FILE", help="record of --since last; default MODEL.since.json by the output")
    add("--restart", action="store_true", help="discard what an interrupted run has finished")
    add(
        "--timeout",
        type=time_in("s"),
        default=DEFAULT_TIMEOUT_S,
        metavar="TIME",
        help=f"for a request, with retries while the server is unavailable; default {DEFAULT_TIMEOUT_S:g}",
    )
    add("--allow-pickle", action="store_true", help="load pickles of the repository, which execute code")
    add("-H", "--header", action="append", default=[], metavar="NAME:VALUE", help="header or metadata for a server")
    add("-q", "--quiet", action="store_true", help="no progress display, no notes and no summary")
    cluster = parser.add_argument_group("on several machines")
    add = cluster.add_argument
    add("--ray", default="", metavar="ADDRESS", help="execute on a Ray: local, auto, HOST:PORT or ray://HOST:PORT")
    add("--workers", type=int, default=0, metavar="N", help="workers of Ray; default as many as it has CPUs for")
    add("--worker-cpus", type=float, default=1.0, metavar="N", help="CPUs of a worker; default 1")
    add("--worker-gpus", type=float, default=0.0, metavar="N", help="GPUs of a worker; default 0")
    return parser


def read_job(flags: argparse.Namespace) -> PredictJob:
    """Return the job. Raises ValueError and InferError for a wrong flag."""
    job = PredictJob(
        flags.target,
        flags.model,
        tuple(flags.input),
        flags.output,
        version=flags.model_version,
        columns=read_columns(flags.column),
        outputs=tuple(name for name in flags.outputs.split(",") if name),
        rows_per_request=flags.rows_per_request,
        concurrency=flags.concurrency,
        max_failed_rows=flags.max_failed_rows,
        restart=flags.restart,
        since=flags.since,
        state=flags.state,
        timeout_s=flags.timeout,
        keys=tuple(flags.key),
        headers=dict(map(parse_header, flags.header)),
        allow_pickle=flags.allow_pickle,
        ray=flags.ray,
        workers=flags.workers,
        worker_cpus=flags.worker_cpus,
        worker_gpus=flags.worker_gpus,
    )
    job.check()
    check_suffix(job.output)
    if is_store_url(job.output):
        split_url(job.output, "--output")
    else:
        check_output("--output", Path(job.output))
    if job.state and not is_store_url(job.state):
        check_output("--state", Path(job.state))
    # What a store has is asked later: one that is away is no mistake of the command line.
    written = written_files(job.output, state_of(job) if job.since else "")
    here = [each for each in job.inputs if not is_store_url(each)]
    find_files(here, written, may_be_none=bool(job.since))
    return job


def run(argv: Sequence[str]) -> int:
    """Run the verb and return the exit status."""
    flags = make_parser().parse_args(list(argv))
    try:
        job = read_job(flags)
    except (ValueError, InferError) as error:
        return fail("naiad predict", _in_flags(str(error)), BAD_OPTION)
    progress = PredictProgress(is_quiet=flags.quiet)
    if flags.quiet:
        logging.getLogger("naiad.tools.predict").setLevel(logging.ERROR)
    try:
        summary = predict(job, progress)
    except ConnectionFailedError as error:
        progress.clear()
        return fail("naiad predict", f"{error.message}; TARGET is the address of a running server")
    except (InferError, OSError) as error:
        progress.clear()
        return fail("naiad predict", _in_flags(getattr(error, "message", "").strip() or str(error)))
    except KeyboardInterrupt:
        progress.clear()
        print("naiad predict: interrupted; the same command continues", file=sys.stderr)
        raise
    progress.clear()
    if not flags.quiet:
        print(summary_text(summary, job.model))
    return _status(summary)


def _status(summary: Summary) -> int:
    outputs = [summary, *([summary.earlier] if summary.earlier is not None else ())]
    if not any(each.failed_rows or each.set_aside for each in outputs):
        return 0
    return SOME_FAILED if any(each.failed_rows < each.rows for each in outputs) else FAILED


def _in_flags(message: str) -> str:
    """Return an error about a field of a job as one about the flag that sets it."""
    for name in ("rows_per_request", "concurrency", "max_failed_rows", "timeout_s", "worker_cpus", "worker_gpus"):
        message = message.replace(name, f"--{name.removesuffix('_s').replace('_', '-')}")
    return _NAMED_FIELD.sub(lambda match: f"--{match[1] or match[2]} '", message)


def summary_text(summary: Summary, model: str) -> str:
    """Return what was done, and the next command."""
    if summary.earlier is not None:
        return "\n\n".join(
            [_earlier_text(summary.earlier, model), summary_text(replace(summary, earlier=None), model)]
        )
    if summary.is_nothing_new:
        files = "file is" if summary.skipped_files == 1 else "files are"
        return f"{model}: nothing to do, {summary.skipped_files:,} {files} not new; no output is written"
    lines = _lines(summary, model)
    if is_store_url(summary.output):
        return "\n".join(lines)  # no command of this machine shows it
    return "\n".join([*lines, "", f"next: {_next(summary)}"])


def _earlier_text(summary: Summary, model: str) -> str:
    return "\n".join(["the output of an earlier run, which did not end:", *_lines(summary, model)])


def _lines(summary: Summary, model: str) -> list[str]:
    new = summary.rows - summary.resumed_rows
    rate = f", {new / summary.seconds:,.0f} rows/s" if summary.seconds and new else ""
    earlier = f", {summary.resumed_rows:,} of them in an earlier run" if summary.resumed_rows else ""
    lines = [
        f"{model}: {summary.rows:,} rows{earlier}, in {summary.seconds:.1f} s{rate}",
        f"output: {summary.output}",
    ]
    if summary.failed_rows:
        what = "row" if summary.failed_rows == 1 else "rows"
        lines.append(f"{summary.failed_rows:,} {what} failed; the reasons: {summary.rejected}")
        lines += [f"  {count:,}: {excerpt(reason)}" for reason, count in summary.reasons.items()]
    if summary.skipped_files:
        lines.append(f"not new: {summary.skipped_files:,} files of earlier runs")
    lines += [f"not read: {file}: {reason}" for file, reason in summary.set_aside.items()]
    return lines


def _next(summary: Summary) -> str:
    if summary.rejected:
        return f"head -n 3 {shlex.quote(summary.rejected)}"
    look = python_to_look(summary.output)
    return f'python -c "{look}"' if look else f"head -n 3 {shlex.quote(summary.output)}"


class PredictProgress:
    """Shows how many rows are done, and the time left."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._status = StatusLine(is_quiet=is_quiet)

    def __call__(self, progress: JobProgress) -> None:
        """Show the state of the job."""
        self._status.show(progress_text(progress))

    def clear(self) -> None:
        """Remove the line."""
        self._status.clear()


def progress_text(progress: JobProgress) -> str:
    """Return the state of a job in one line."""
    if progress.phase == "load":
        return "loading the model"
    if progress.phase == "write":
        return f"{progress.rows:,} rows, writing the output"
    text = f"{progress.fraction:.0%}, {progress.rows:,} rows, {progress.rows_per_s:,.0f} rows/s"
    if progress.failed_rows:
        text += f", {progress.failed_rows:,} failed"
    if progress.workers:
        text += f", {progress.workers} workers"
    if progress.seconds_left is not None:
        text += f", {_duration(progress.seconds_left)} left"
    return text


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
