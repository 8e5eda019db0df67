"""`naiad optimize`: read the source and the samples, optimize, report, and write the package."""

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from naiad.cli.optimize.flags import make_parser, read_options
from naiad.cli.parser import BAD_OPTION
from naiad.optimizer import package, preprocessing
from naiad.optimizer.converters.plan import candidates, installed_packages
from naiad.optimizer.correctness.runner import RunnerError
from naiad.optimizer.options import Options
from naiad.optimizer.profile import configuration
from naiad.optimizer.report import text_table, write_csv, write_html
from naiad.optimizer.result import Result
from naiad.optimizer.run import optimize
from naiad.optimizer.samples.reading import from_path, shape_ranges
from naiad.optimizer.source import Samples, Source
from naiad.optimizer.sources import open_source, reference_runner
from naiad.perf.report.charts import ChartsMissingError

_STAGES = {
    "convert": "conversion",
    "judge": "compared",
    "search": "searched for sensitive layers",
    "profile": "measured",
    "tune": "tuned",
    "serve": "served",
}


class ConsoleProgress:
    """Shows steps on stderr, with the time left in a stage of several steps."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._is_terminal = sys.stderr.isatty()
        self._stage = ""
        self._begin_s = self._step_s = 0.0

    def step(self, stage: str, name: str, index: int, count: int) -> None:
        """Show the step that begins."""
        now_s = time.monotonic()
        if stage != self._stage:
            self._stage, self._begin_s = stage, now_s
        self._step_s = now_s
        if self._is_terminal and not self._is_quiet:
            left = f", {(now_s - self._begin_s) / index * (count - index):.0f} s left" if index else ""
            sys.stderr.write(f"\r\x1b[2K{stage} {name} ({index + 1} of {count}{left})")
            sys.stderr.flush()

    def done(self, stage: str, name: str, message: str, *, was_cached: bool = False) -> None:
        """Show how the step ended."""
        if self._is_quiet:
            return
        took = "from an earlier run" if was_cached else f"{time.monotonic() - self._step_s:.1f} s"
        self._step_s = time.monotonic()
        start = "\r\x1b[2K" if self._is_terminal else ""
        detail = f": {message}" if message else ""
        print(f"{start}{_STAGES[stage]} {name}{detail} ({took})", file=sys.stderr, flush=True)


FAILED = 1


def run(argv: Sequence[str]) -> int:
    """Run the verb and return the exit status."""
    flags = make_parser().parse_args(list(argv))
    try:
        source = open_source(
            flags.source,
            name=flags.name,
            samples=None if flags.preprocessing else flags.data,
            inputs=flags.input_tensor,
            outputs=flags.output_tensor,
            has_batch=False if flags.no_batch else None,
            allow_pickle=flags.allow_pickle,
        )
        options = read_options(flags, source.outputs)
        if options.preprocessing:
            samples = preprocessing.read_samples(flags.data, options.preprocessing)
        else:
            samples = from_path(flags.data, source.inputs, source.has_batch)
        if flags.list:
            return _list(source, samples, options)
    except (ValueError, OSError) as error:
        print(f"naiad optimize: {error}", file=sys.stderr)
        return BAD_OPTION
    try:
        return _optimize(flags, argv, source, samples, options)
    except (RunnerError, ValueError, OSError) as error:
        print(f"naiad optimize: {error}", file=sys.stderr)
        return FAILED


def _optimize(
    flags: argparse.Namespace, argv: Sequence[str], source: Source, samples: Samples, options: Options
) -> int:
    command = ["naiad", "optimize", *argv]
    progress = ConsoleProgress(is_quiet=flags.quiet)
    workspace: Path = flags.workspace
    workspace.mkdir(parents=True, exist_ok=True)
    result = optimize(source, samples, workspace, options, progress, command)
    report: Path = flags.report or workspace / "report"
    report.mkdir(parents=True, exist_ok=True)
    write_csv(result, report / "candidates.csv")
    print(text_table(result))
    _write_page(result, report / "index.html")
    if not result.winner:
        return FAILED
    target: Path = flags.output or Path(f"{source.name}-optimized")
    runner = reference_runner(result.source, workspace, result.samples_digest, options.runner_limits)
    try:
        config = _configuration(result)
        settings = replace(options.correctness, has_batch=result.source.has_batch)
        package.write(result, samples, config, target, flags.labels_file, source=runner, settings=settings)
    finally:
        runner.close()
    print(f"package: {target}\n\nnaiad serve {shlex.quote(str(target))} serves it; naiad verify checks it elsewhere.")
    return 0


def _write_page(result: Result, page: Path) -> None:
    try:
        write_html(result, page)
    except ChartsMissingError as error:
        print(f"\nreport: {page.with_name('candidates.csv')}; {error}")
    else:
        print(f"\nreport: {page}")


def _configuration(result: Result) -> str:
    """Return the winner's `config.pbtxt` under which its figures were measured."""
    chosen = result.chosen
    if chosen is None or chosen.conversion is None:
        raise ValueError(f"'{result.winner}' has no files")
    if chosen.served is not None:
        runtime, batch = chosen.served.runtime, chosen.served.max_batch_size
    else:
        best = max(chosen.profiles, key=lambda each: each.throughput.value)
        runtime, batch = best.runtime, best.batch
    candidate = replace(chosen.candidate, name=result.source.name)
    return configuration(candidate, chosen.conversion, result.source, runtime, batch)


def _list(source: Source, samples: Samples, options: Options) -> int:
    """Print the plan."""
    ranges = shape_ranges(samples, has_batch=source.has_batch)
    print(f"{source.path}: {source.format.value}, {len(samples)} samples")
    for spec in (*source.inputs, *source.outputs):
        print(
            f"  {'input' if spec in source.inputs else 'output'} {spec.name} {spec.datatype.value} {list(spec.shape)}"
        )
    plan = [each for each in candidates(source, ranges, installed_packages()) if options.includes(each)]
    width = max((len(each.name) for each in plan), default=0)
    for candidate in plan:
        state = f"not run: {candidate.not_run}" if candidate.not_run else candidate.backend
        print(f"{candidate.name:{width}}  {candidate.precision.value:12}  {state}")
    return 0
