"""A Python function as a source: it has no conversions, so it is measured as it is."""

import datetime
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from naiad.core.tensor import Array
from naiad.tools.optimize.candidate import Candidate, Precision, Status
from naiad.tools.optimize.converters.conversion_plan import installed_packages
from naiad.tools.optimize.correctness.runners.model_runner import Arrays, CallableRunner
from naiad.tools.optimize.optimize_result import Objective, OptimizationResult, Outcome
from naiad.tools.optimize.optimize_source import Format, Samples, Source
from naiad.tools.optimize.package.short_profile import measure
from naiad.tools.optimize.results.candidate_measurement import Profile, Runtime
from naiad.tools.optimize.samples.sample_reader import digest
from naiad.tools.optimize.sources.observation import observe, run_examples
from naiad.tools.optimize.steps.environment import describe

_REQUESTS = 32
"""Samples that are measured."""


def optimize_function(
    function: Callable[..., Any],
    samples: Samples,
    workspace: Path,
    name: str,
    has_batch: bool | None,
    output_names: Sequence[str],
    profile_s: float,
) -> OptimizationResult:
    """Return the figures of a function, with an empty name of the winner.

    It is called with the inputs by keyword, or by position if they are numbered, and returns an array, a sequence
    or a mapping of them. Raises ValueError if it fails on the samples or returns something else.
    """
    started, begin_s = datetime.datetime.now(datetime.UTC), time.monotonic()
    seen = observe(samples)
    call = arrays_call(function, output_names)
    runs = run_examples(call, seen.examples, has_batch)
    source = Source(name, Format.PYTHON, workspace, has_batch=runs.rows is not None, load=lambda: call)
    rows = () if runs.rows is None else (runs.rows,)
    inputs = tuple(replace(spec, shape=(*rows, *spec.shape)) for spec in seen.inputs)
    source = replace(source, inputs=inputs, outputs=runs.specs)
    requests = [_request(sample, source.has_batch) for sample in itertools.islice(samples, _REQUESTS)]
    figures = measure(CallableRunner(call), requests, profile_s)
    profile = Profile(Runtime(), figures.latency, figures.throughput, 1, 0.0, 0.0)
    outcome = Outcome(Candidate("source", Format.PYTHON, Precision.FP32, "python"), Status.PASSED, profiles=[profile])
    latency_ms = figures.latency.value / 1000
    return OptimizationResult(
        source=source,
        objective=Objective(),
        outcomes=[outcome],
        winner="",
        why=f"a Python function has no conversions; a call takes {latency_ms:.3g} ms",
        samples=len(samples),
        samples_digest=digest(samples),
        source_digest="",
        started=started.isoformat(timespec="seconds"),
        duration_s=time.monotonic() - begin_s,
        environment=describe(installed_packages(), ["numpy"]),
    )


def arrays_call(function: Callable[..., Any], output_names: Sequence[str] = ()) -> Callable[[Arrays], Arrays]:
    """Return a function from arrays by name to arrays by name."""

    def call(inputs: Arrays) -> Arrays:
        is_numbered = all(name.startswith("#") for name in inputs)
        found = function(*inputs.values()) if is_numbered else function(**inputs)
        if isinstance(found, Mapping):
            return {str(name): _array(value) for name, value in found.items()}
        values = found if isinstance(found, (list, tuple)) else [found]
        names = output_names or [f"output_{place}" for place in range(len(values))]
        return {name: _array(value) for name, value in zip(names, values, strict=True)}

    return call


def _array(value: Any) -> Array:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _request(sample: Arrays, has_batch: bool) -> Arrays:
    return {name: array[None] for name, array in sample.items()} if has_batch else sample
