"""Options of a backend for one model: a coordinate search with the measurement of the profiles.

One option after the other is set to its alternatives, which run beside the best options so far. A value is kept if it
is better beyond the confidence intervals. At the end all kept values are measured again beside the options that the
search began with, since the best of many measurements is partly luck.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from naiad.tools.optimize.candidate import Candidate, Conversion
from naiad.tools.optimize.choice import best_profile
from naiad.tools.optimize.correctness.runners.isolated import CandidateLimits
from naiad.tools.optimize.optimize_result import Objective
from naiad.tools.optimize.optimize_source import Format, Samples, Source
from naiad.tools.optimize.profile.candidate_configuration import GRAPH_LEVEL
from naiad.tools.optimize.profile.measuring import measure_group, profile_samples
from naiad.tools.optimize.results.candidate_measurement import Profile, Runtime

Values: TypeAlias = Mapping[str, str]
"""Parameters that an alternative sets."""

_SECONDS = 0.6
"""Of measuring each alternative."""
_ONNX: Sequence[Sequence[Values]] = (
    [{"session.intra_op.allow_spinning": "0"}, {"session.intra_op.allow_spinning": "1"}],
    [{"enable_mem_arena": "0"}, {"enable_mem_pattern": "0"}],
    [{GRAPH_LEVEL: "1"}, {GRAPH_LEVEL: "-1"}],
    [{"execution_mode": "1"}],
    [{"session.dynamic_block_base": "4"}],
)
_OPENVINO: Sequence[Sequence[Values]] = (
    [{"PERFORMANCE_HINT": "LATENCY"}, {"PERFORMANCE_HINT": "THROUGHPUT"}],
    [{"NUM_STREAMS": "1"}, {"NUM_STREAMS": "2"}],
    [{"ENABLE_CPU_PINNING": "YES"}, {"ENABLE_CPU_PINNING": "NO"}],
    [{"property.ENABLE_HYPER_THREADING": "NO"}],
)
_TORCHSCRIPT: Sequence[Sequence[Values]] = (
    [{"DISABLE_OPTIMIZED_EXECUTION": "true"}, {"ENABLE_JIT_PROFILING": "false"}],
    [{"INFERENCE_MODE": "false"}],
)
_COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_TORCH_EXPORT: Sequence[Sequence[Values]] = (
    [{_COMPILE: '{"dynamic": true}'}, {_COMPILE: '{"dynamic": true, "mode": "max-autotune-no-cudagraphs"}'}],
)
_TENSORFLOW: Sequence[Sequence[Values]] = ([{"TF_NUM_INTER_THREADS": "1"}],)
_BACKENDS = {"onnxruntime": _ONNX, "openvino": _OPENVINO, "tensorflow": _TENSORFLOW}


def options(candidate: Candidate) -> Sequence[Sequence[Values]]:
    """Return the options of a candidate's backend, each with its alternatives; none that change datatypes."""
    if candidate.format is Format.TORCHSCRIPT:
        return _TORCHSCRIPT
    if candidate.format is Format.TORCH_EXPORT:
        return _TORCH_EXPORT
    return _BACKENDS.get(candidate.backend, ())


def tune(
    conversion: Conversion,
    runtime: Runtime,
    samples: Samples,
    source: Source,
    *,
    limit_s: float = 30.0,
    limits: CandidateLimits | None = None,
    objective: Objective | None = None,
) -> Profile | None:
    """Return the profile of the runtime `tuned`; None if no options are better than `runtime`'s.

    The search ends after about `limit_s`. Raises ValueError if there are no samples.
    """
    rows, wanted, best = profile_samples(samples), objective or Objective(), runtime
    deadline_s, longest_s = time.monotonic() + limit_s, 0.0
    for alternatives in options(conversion.candidate):
        begin_s = time.monotonic()
        # The last comparison needs as much time.
        if deadline_s - begin_s < 2 * longest_s:
            break
        tried = [best, *(Runtime("tuned", {**best.parameters, **each}, best.instances) for each in alternatives)]
        allowed = _within(limits or CandidateLimits(), deadline_s - begin_s)
        found = measure_group([(conversion, each) for each in tried], rows, source, _SECONDS, allowed)
        better = best_profile(found, wanted)
        best = better.runtime if better is not None else best
        longest_s = max(longest_s, time.monotonic() - begin_s)
    if best is runtime:
        return None
    pair = [(conversion, each) for each in (runtime, best)]
    before, after = measure_group(pair, rows, source, 2 * _SECONDS, limits or CandidateLimits())
    return after if best_profile([before, after], wanted) is after else None


def _within(limits: CandidateLimits, seconds: float) -> CandidateLimits:
    return replace(limits, load_s=min(limits.load_s, seconds), call_s=min(limits.call_s, seconds))
