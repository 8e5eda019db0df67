"""`naiad optimize`: read the source and the samples, optimize, report, and write the package."""

import argparse
import re
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TypeVar

import numpy as np

from naiad.cli.parser import BAD_OPTION, FAILED, Parser, check_output, fail, time_in
from naiad.cli.status_line import StatusLine
from naiad.core.tensor import TensorSpec
from naiad.options.duration import read_time
from naiad.tools.measure.charts import ChartsMissingError
from naiad.tools.optimize import package, preprocessing
from naiad.tools.optimize.candidate import Precision
from naiad.tools.optimize.choices import Options
from naiad.tools.optimize.converters.conversion_child import FULL_DISK
from naiad.tools.optimize.converters.conversion_plan import candidates, installed_packages
from naiad.tools.optimize.correctness.judgement_settings import Budget, Settings, parse_max_drop
from naiad.tools.optimize.correctness.runners.isolated import CandidateLimits
from naiad.tools.optimize.correctness.runners.model_runner import RunnerError
from naiad.tools.optimize.optimization import check_labels, optimize
from naiad.tools.optimize.optimize_progress import Progress
from naiad.tools.optimize.optimize_result import SOURCE, Objective, OptimizationResult, Strategy
from naiad.tools.optimize.optimize_source import Format, Labels, Samples, Source
from naiad.tools.optimize.preprocessing import read_steps
from naiad.tools.optimize.profile import configuration
from naiad.tools.optimize.report import text_table, write_csv, write_html
from naiad.tools.optimize.results.verdict import Tolerance, parse_tolerance
from naiad.tools.optimize.samples.sample_reader import from_path, shape_ranges
from naiad.tools.optimize.sources import open_source, reference_runner
from naiad.tools.optimize.sources.source_formats import detect, refuse_pickle
from naiad.tools.process.running import ProcessLimits

METRICS = ("accuracy", "top5", "f1", "mse")
_DESCRIPTION = """\
Convert a model to every format and precision that naiad serves, reject the conversions that answer differently,
measure the rest, and write the best one as a package. SOURCE is a model file or folder; DATA are samples of its
inputs: an .npz file (inputs by name, samples along the first axis), an .npy file, or a folder of such files with one
sample each.
"""
_EPILOG = """\
example: naiad optimize model.onnx --data samples.npz --output best
Exit status: 0 a winner was found; 1 no candidate passed, none is proven to be the best on a busy machine, or an error
ended it; 2 invalid command line.
"""

_Choice = TypeVar("_Choice", bound=Enum)


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        prog="naiad optimize",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, metavar="SOURCE", help="model file or folder")
    parser.add_argument("-d", "--data", type=Path, required=True, metavar="DATA", help="samples of the inputs")
    model = parser.add_argument_group("model")
    model.add_argument("--name", default="", metavar="NAME", help="name of the served model; default from SOURCE")
    for which in ("input", "output"):
        help_text = f"{which} of a model whose file does not say it"
        model.add_argument(
            f"--{which}-tensor", action="append", default=[], metavar="NAME:TYPE:SHAPE", help=help_text
        )
    model.add_argument("--no-batch", action="store_true", help="the first dimension of tensors is not a batch")
    model.add_argument(
        "--preprocessing", type=Path, metavar="STEPS", help="JSON file with steps that become a part of an ONNX graph"
    )
    model.add_argument("--allow-pickle", action="store_true", help="read files that can execute code")
    _add_choices(parser)
    _add_correctness(parser)
    _add_limits(parser)
    output = parser.add_argument_group("output")
    output.add_argument("-o", "--output", type=Path, metavar="PACKAGE", help="folder or .zip; default NAME-optimized")
    output.add_argument("--labels-file", type=Path, metavar="FILE", help="names of the classes, for the package")
    output.add_argument("--report", type=Path, metavar="DIR", help="default WORKSPACE/report")
    output.add_argument(
        "-w", "--workspace", type=Path, default=Path("optimization"), metavar="DIR", help="default optimization"
    )
    output.add_argument("--fresh", action="store_true", help="repeat judging and measuring of earlier runs")
    output.add_argument("--list", action="store_true", help="show the candidates, and run nothing")
    output.add_argument("-q", "--quiet", action="store_true", help="no progress display")
    return parser


def _add_choices(parser: Parser) -> None:
    add = parser.add_argument_group("what is wanted").add_argument
    strategies = [each.value for each in Strategy]
    add("--strategy", choices=strategies, help=f"default {Objective().strategy.value}")
    add("--latency-budget", metavar="TIME", help="limit of the p99 latency under load: 20ms, 0.5s")
    add("--memory-budget", type=float, metavar="MIB", help="limit of the memory of the model")
    add("--formats", metavar="A,B", help=f"formats to try: {_names(Format)}; default all")
    add("--precisions", metavar="A,B", help=f"precisions to try: {_names(Precision)}; default all")
    add("--candidates", metavar="A,B", help="names of candidates, as --list shows them")
    text = "a conversion of your own, which is judged, measured and packaged like each other candidate"
    add("--candidate", action="append", default=[], metavar="NAME=FILE", help=text)
    text = "precision of a conversion of your own, which sets its tolerances; default fp32"
    add("--candidate-precision", action="append", default=[], metavar="NAME=PRECISION", help=text)
    add("--accept", default="", metavar="NAME", help="package this candidate if it passes, also against the figures")


def _add_correctness(parser: Parser) -> None:
    add = parser.add_argument_group("correctness").add_argument
    text = "TENSOR is an output; default tolerances depend on precision and output"
    add("--tolerance", action="append", default=[], metavar="TENSOR=ABSOLUTE,RELATIVE[,COSINE[,TOP1]]", help=text)
    add("--metric", choices=METRICS, help="compare this with --labels, in place of values")
    add("--max-drop", default="0.5%", metavar="SHARE", help="allowed loss of the metric; default 0.5%%")
    add("--labels", type=Path, metavar="FILE", help=".npy with the label of each sample")
    add("--label-output", default="", metavar="TENSOR", help="output that --metric judges")


def _add_limits(parser: Parser) -> None:
    add = parser.add_argument_group("time and memory").add_argument
    defaults = Options()
    add("--finalists", type=int, default=defaults.finalists, metavar="N", help="served; default 3")
    add("--seconds", type=time_in("s"), default=defaults.profile_s, metavar="TIME", help="of a measurement")
    add("--sensitivity-steps", type=int, default=defaults.sensitivity_steps, metavar="N")
    add("--tuning-seconds", type=time_in("s"), default=defaults.tuning_s, metavar="TIME")
    converter, runner = ProcessLimits(), CandidateLimits()
    add("--converter-seconds", type=time_in("s"), default=converter.time_s, metavar="TIME")
    add("--converter-memory", type=float, default=converter.memory_mib, metavar="MIB")
    add("--runner-seconds", type=time_in("s"), default=runner.call_s, metavar="TIME", help="limit of a request")
    add("--runner-memory", type=float, default=runner.memory_mib, metavar="MIB")


def read_options(flags: argparse.Namespace, outputs: Sequence[TensorSpec]) -> Options:
    """Return the choices of the command line. Raises ValueError with flag, value and fix."""
    strategy = Strategy(flags.strategy) if flags.strategy else Objective().strategy
    budget_us = _time_us("--latency-budget", flags.latency_budget)
    if strategy is Strategy.MAX_THROUGHPUT_WITHIN_LATENCY and budget_us is None:
        raise ValueError(f"--strategy {strategy.value} needs --latency-budget, for example --latency-budget 20ms")
    return Options(
        objective=Objective(strategy, budget_us, flags.memory_budget),
        correctness=Settings(tolerances=_tolerances(flags.tolerance, outputs), budget=_budget(flags, outputs)),
        formats=_chosen("--formats", flags.formats, Format),
        precisions=_chosen("--precisions", flags.precisions, Precision),
        candidates=[name for name in (flags.candidates or "").split(",") if name],
        preprocessing=read_steps(flags.preprocessing) if flags.preprocessing else (),
        finalists=flags.finalists,
        profile_s=flags.seconds,
        sensitivity_steps=flags.sensitivity_steps,
        tuning_s=flags.tuning_seconds,
        converter_limits=ProcessLimits(flags.converter_seconds, flags.converter_memory),
        runner_limits=CandidateLimits(call_s=flags.runner_seconds, memory_mib=flags.runner_memory),
        accepted=flags.accept,
        own=_own(flags.candidate, allow_pickle=flags.allow_pickle),
        own_precisions=_own_precisions(flags.candidate_precision, flags.candidate),
        is_fresh=flags.fresh,
    )


def _own(given: Sequence[str], *, allow_pickle: bool) -> dict[str, Path]:
    """Return the conversions of the user by name. Raises ValueError."""
    own: dict[str, Path] = {}
    for text in given:
        name, _, file = text.partition("=")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name) or not file:
            raise ValueError(f"--candidate is '{text}'; write NAME=FILE, with letters, digits, - and _ in the name")
        if name in own or name == SOURCE:
            raise ValueError(f"--candidate has the name '{name}' twice; give each conversion a name of its own")
        own[name] = Path(file)
        made_of = detect(own[name])
        if not allow_pickle:
            refuse_pickle(own[name], made_of)
    return own


def _own_precisions(given: Sequence[str], own: Sequence[str]) -> dict[str, Precision]:
    names = [text.partition("=")[0] for text in own]
    found: dict[str, Precision] = {}
    for text in given:
        name, _, precision = text.partition("=")
        if name not in names:
            raise ValueError(f"--candidate-precision names '{name}'; --candidate has {', '.join(names) or 'none'}")
        (found[name],) = _chosen("--candidate-precision", precision, Precision) or [Precision.FP32]
    return found


def _names(kind: type[Enum]) -> str:
    return ", ".join(each.value for each in kind)


def _chosen(flag: str, text: str | None, kind: type[_Choice]) -> list[_Choice]:
    known = {each.value: each for each in kind}
    names = [name for name in (text or "").split(",") if name]
    for name in names:
        if name not in known:
            raise ValueError(f"{flag} has '{name}'; write some of {', '.join(known)}")
    return [known[name] for name in names]


def _time_us(flag: str, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return read_time(text, "us", needs_unit=True)
    except ValueError:
        raise ValueError(f"{flag} is '{text}'; write a time with its unit, for example 20ms") from None


def _tolerances(given: Sequence[str], outputs: Sequence[TensorSpec]) -> dict[str, Tolerance]:
    tolerances = {}
    for text in given:
        _check_output("--tolerance", text.rpartition("=")[0], outputs)
        name, tolerance = parse_tolerance(text)
        tolerances[name] = tolerance
    return tolerances


def _budget(flags: argparse.Namespace, outputs: Sequence[TensorSpec]) -> Budget | None:
    if not flags.metric:
        return None
    if flags.labels is None:
        raise ValueError(f"--metric {flags.metric} needs --labels, an .npy file with the label of each sample")
    try:
        labels = np.load(flags.labels, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"--labels {flags.labels}: {error}") from error
    name = flags.label_output or (outputs[0].name if len(outputs) == 1 else "")
    _check_output("--label-output", name, outputs)
    return Budget(flags.metric, parse_max_drop(flags.max_drop), Labels(name, labels))


def _check_output(flag: str, name: str, outputs: Sequence[TensorSpec]) -> None:
    names = [spec.name for spec in outputs]
    if name not in names:
        raise ValueError(f"{flag} names the output '{name}'; the model has {', '.join(names)}")


_WIDE = 1.3
"""Factor from which an estimate is shown as a range."""
_STAGES = {
    "convert": "conversion",
    "judge": "compared",
    "search": "searched for sensitive layers",
    "profile": "measured",
    "tune": "tuned",
    "serve": "served",
}


class OptimizeProgress(Progress):
    """Shows steps on stderr, with the time left in a stage of several steps.

    A step that is left may take as long as the longest one so far: the estimate is a range.
    """

    def __init__(self, *, is_quiet: bool) -> None:
        self._status = StatusLine(is_quiet=is_quiet)
        self._stage = ""
        self._begin_s = self._step_s = 0.0
        self._longest_s = 0.0

    def step(self, stage: str, name: str, index: int, count: int) -> None:
        """Show the step that begins."""
        now_s = time.monotonic()
        if stage != self._stage:
            self._stage, self._begin_s, self._longest_s = stage, now_s, 0.0
        elif index:
            self._longest_s = max(self._longest_s, now_s - self._step_s)
        self._step_s = now_s
        left = f", {time_left(now_s - self._begin_s, self._longest_s, index, count)}" if index else ""
        self._status.replace(f"{stage} {name} ({index + 1} of {count}{left})")

    def done(self, stage: str, name: str, message: str, *, was_cached: bool = False) -> None:
        """Show how the step ended."""
        took = "from an earlier run" if was_cached else f"{time.monotonic() - self._step_s:.1f} s"
        self._step_s = time.monotonic()
        detail = f": {message}" if message else ""
        self._status.finish(f"{_STAGES[stage]} {name}{detail} ({took})")


def time_left(passed_s: float, longest_s: float, done: int, count: int) -> str:
    """Return the time for the steps that are left: as long as the mean of those before, to as long as the longest.

    Steps with more effort come later, so that the mean is the least.
    """
    rest = count - done
    least_s, most_s = passed_s / done * rest, max(longest_s, passed_s / done) * rest
    if most_s < _WIDE * least_s:
        return f"about {most_s:.0f} s left"
    return f"{least_s:.0f} to {most_s:.0f} s left"


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
        check_labels(options, samples)
        _check_outputs(flags)
    except (ValueError, OSError) as error:
        return fail("naiad optimize", error, BAD_OPTION)
    try:
        return _optimize(flags, argv, source, samples, options)
    except OSError as error:
        return fail("naiad optimize", _with_place(error, flags.workspace))
    except (RunnerError, ValueError) as error:
        return fail("naiad optimize", error)


def _with_place(error: OSError, workspace: Path) -> OSError | ValueError:
    """Return an error that names the disk, which the error of a write does not."""
    if error.errno not in FULL_DISK:
        return error
    place = error.filename or workspace
    return ValueError(
        f"no space is left on the disk of {place}; free some, or choose another disk with --workspace, --report and "
        "--output"
    )


def _check_outputs(flags: argparse.Namespace) -> None:
    """Raise ValueError for a folder that could not be written at the end."""
    check_output("--workspace", flags.workspace, is_folder=True)
    if flags.report:
        check_output("--report", flags.report, is_folder=True)
    if flags.output:
        check_output("--output", flags.output.parent, is_folder=True)
        package.check_target(flags.output)


def _optimize(
    flags: argparse.Namespace, argv: Sequence[str], source: Source, samples: Samples, options: Options
) -> int:
    command = ["naiad", "optimize", *argv]
    progress = OptimizeProgress(is_quiet=flags.quiet)
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
    except OSError as error:
        if error.errno in FULL_DISK:
            error.filename = error.filename or str(target)
        raise
    finally:
        runner.close()
    print(f"package: {target}\n\nnaiad serve {shlex.quote(str(target))} serves it; naiad verify checks it elsewhere.")
    return 0


def _write_page(result: OptimizationResult, page: Path) -> None:
    try:
        write_html(result, page)
    except ChartsMissingError as error:
        print(f"\nreport: {page.with_name('candidates.csv')}; {error}")
    else:
        print(f"\nreport: {page}")


def _configuration(result: OptimizationResult) -> str:
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
