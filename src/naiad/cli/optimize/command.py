"""`naiad optimize`: read the source and the samples, optimize, report, and write the package."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from naiad.cli.optimize.console import ConsoleProgress
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
