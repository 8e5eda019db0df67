"""Splits a model: plans the cuts, writes the stages, runs them against the whole model, then moves them into place.

By time, the weights are the times of single nodes. Merged nodes take less, so the plan is corrected by the measured
times of whole stages until it is balanced.
"""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np

from naiad.backend.cores import usable_cores
from naiad.core.errors import internal, invalid_argument
from naiad.tools.split.cuts import plan_cuts
from naiad.tools.split.split_source import (
    Feeds,
    SplitSession,
    SplitSource,
    Stage,
    difference,
    fastest_ms,
    rows_are_independent,
    run_stages,
)
from naiad.tools.split.stage_repository import write_ensemble, write_stage

_TENSOR_COST_BYTES = 4096
"""What a crossing tensor costs besides its bytes."""
_ROUNDS = 4
_BALANCED = 1.05
"""Ratio of the slowest stage to the mean at which a plan is not corrected any more."""


@dataclass(frozen=True, slots=True)
class MeasuredStage:
    """One stage of the result."""

    name: str
    node_count: int
    parameter_bytes: int
    time_ms: float
    crossing: tuple[tuple[str, int], ...]
    """Names and bytes of the tensors that go to later stages."""


@dataclass(frozen=True, slots=True)
class Split:
    """The result."""

    name: str
    stages: Sequence[MeasuredStage]
    whole_ms: float
    differences: Sequence[tuple[str, float, float]]
    """Name of an output, largest absolute difference, and its ratio to the largest value."""
    threads: int
    can_batch: bool


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """What the command line asks for."""

    stage_count: int
    by: Literal["time", "bytes"]
    devices: Sequence[int]
    """GPU of each stage, in turn; none for the CPU."""
    isolation: str = ""
    data: Path | None = None


def split_model(path: Path, output: Path, options: SplitOptions) -> Split:
    """Split the model file and write the stages and their ensemble into `output`.

    Raises InferError if the model cannot be split, or if the stages compute something else; nothing is written then.
    """
    name = path.stem
    names = [name, *(f"{name}_stage{index}" for index in range(options.stage_count))]
    for each in names:
        if (output / each).exists():
            raise invalid_argument(f"{output / each} exists; remove it, or choose another directory with --output")
    threads = max(1, usable_cores() // options.stage_count)
    source = _read_source(path, threads, options.data)
    feeds = source.feeds
    # The stages are renamed into an existing repository: its parent may be read-only, or another file system.
    home = output if output.is_dir() else output.absolute().parent
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".split-", dir=home) as directory:
        plan = _balance(_Work(Path(directory), name, source), options)
        differences = _prove(source.whole, plan.sessions, feeds)
        can_batch = rows_are_independent(plan.sessions, feeds, [*plan.crossing, *source.outputs])
        configs = [
            write_stage(
                plan.directory / each,
                source.backend,
                can_batch=can_batch,
                threads=(source.threads_parameter, threads),
                device=options.devices[index % len(options.devices)] if options.devices else None,
                isolation=options.isolation,
            )
            for index, each in enumerate(names[1:])
        ]
        write_ensemble(plan.directory / name, configs, source.inputs, source.outputs)
        output.mkdir(exist_ok=True)
        for each in names:
            (plan.directory / each).rename(output / each)
    sizes = {value: source.sizes[value] for value in plan.crossing}
    stages = [
        MeasuredStage(
            names[index + 1],
            stage.node_count,
            stage.parameter_bytes,
            time_ms,
            tuple((value, sizes[value]) for value in stage.outputs if value in sizes),
        )
        for index, (stage, time_ms) in enumerate(zip(plan.stages, plan.times_ms, strict=True))
    ]
    return Split(name, stages, fastest_ms([source.whole], feeds)[0], differences, threads, can_batch)


def _read_source(path: Path, threads: int, data: Path | None) -> SplitSource:
    """Read and observe a model file. Raises InferError, and ModuleNotFoundError without the library of its format."""
    if path.suffix == ".pt2":
        from naiad.tools.split.exported_source import ExportedSource

        return ExportedSource(path, threads, data)
    from naiad.tools.split.onnx_source import OnnxSource

    return OnnxSource(path, threads, data)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Written stages."""

    directory: Path
    cuts: list[int]
    stages: Sequence[Stage]
    times_ms: list[float]

    @property
    def sessions(self) -> list[SplitSession]:
        """The stages, loaded."""
        return [stage.session for stage in self.stages]

    @property
    def crossing(self) -> list[str]:
        """Values that a later stage uses."""
        used = {value for stage in self.stages for value in stage.inputs}
        return [value for stage in self.stages for value in stage.outputs if value in used]


@dataclass(frozen=True, slots=True)
class _Work:
    """What all plans of one split are made from."""

    directory: Path
    name: str
    source: SplitSource

    def costs(self) -> list[float]:
        """Return the cost of a cut before each node."""
        sizes = self.source.sizes
        return [
            sum(sizes.get(value, float("inf")) + _TENSOR_COST_BYTES for value in values)
            for values in self.source.crossing
        ]

    def write(self, cuts: list[int]) -> _Plan:
        """Write the stages between the cuts and measure them. Raises InferError."""
        directory = Path(tempfile.mkdtemp(dir=self.directory))
        stages = self.source.write(cuts, directory, self.name)
        sessions = [stage.session for stage in stages]
        inputs = run_stages(sessions, self.source.feeds)
        return _Plan(directory, cuts, stages, fastest_ms(sessions, inputs))


def _balance(work: _Work, options: SplitOptions) -> _Plan:
    """Return the plan with the fastest slowest stage by time, or the plan by bytes. Raises InferError."""
    is_by_time = options.by == "time"
    weights = [float(each) for each in (work.source.node_ms if is_by_time else work.source.parameter_bytes)]
    costs = work.costs()
    best = plan = work.write(plan_cuts(weights, costs, options.stage_count))
    tried = [plan.cuts]
    while is_by_time and len(tried) < _ROUNDS and max(plan.times_ms) > _BALANCED * fmean(plan.times_ms):
        weights = _corrected(weights, plan.cuts, plan.times_ms)
        cuts = plan_cuts(weights, costs, options.stage_count)
        if cuts in tried:
            break
        tried.append(cuts)
        plan = work.write(cuts)
        worse = plan
        if max(plan.times_ms) < max(best.times_ms):
            best, worse = plan, best
        shutil.rmtree(worse.directory)
    return best


def _corrected(weights: Sequence[float], cuts: Sequence[int], times_ms: Sequence[float]) -> list[float]:
    """Return the weights of nodes, scaled so that each stage has the measured sum."""
    corrected: list[float] = []
    bounds = [0, *cuts, len(weights)]
    for first, end, time_ms in zip(bounds, bounds[1:], times_ms, strict=False):
        total = sum(weights[first:end])
        share = time_ms / (end - first)
        corrected += [weight * time_ms / total if total else share for weight in weights[first:end]]
    return corrected


def _prove(whole: SplitSession, stages: Sequence[SplitSession], feeds: Feeds) -> list[tuple[str, float, float]]:
    """Return the differences of all outputs. Raises InferError if one is too large."""
    expected, staged = whole.run(feeds), run_stages(stages, feeds)
    for name, value in expected.items():
        if value.dtype.kind == "f" and value.size and not np.isfinite(value).any():
            raise invalid_argument(
                f"output '{name}' has only NaN and infinity for these inputs, so that nothing can be compared; give "
                "inputs that the model is for with --data; nothing is written"
            )
    found = []
    for name, value in expected.items():
        apart, ratio, is_equal = difference(value, staged[name])
        if not is_equal:
            raise internal(
                f"output '{name}' of the stages differs from the whole model's by {apart:.3g}, {ratio:.2g} of its "
                "largest value: the model may be random or depend on merged nodes; nothing is written"
            )
        found.append((name, apart, ratio))
    return found
