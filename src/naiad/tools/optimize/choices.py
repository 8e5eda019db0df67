"""Choices of an optimization."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from naiad.tools.optimize.candidate import Candidate, Precision
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.isolated import CandidateLimits as RunnerLimits
from naiad.tools.optimize.optimize_result import SOURCE, Objective
from naiad.tools.optimize.optimize_source import Format
from naiad.tools.process.running import ProcessLimits


@dataclass(frozen=True, slots=True)
class Options:
    """What is tried, how it is judged, and how much time that may take."""

    objective: Objective = field(default_factory=Objective)
    correctness: Settings = field(default_factory=Settings)
    """`has_batch` is the source's."""
    formats: Collection[Format] = ()
    """Formats to try; empty for all."""
    precisions: Collection[Precision] = ()
    """Precisions to try; empty for all."""
    candidates: Collection[str] = ()
    """Names of candidates to try; empty for all."""
    preprocessing: Sequence[Mapping[str, Any]] = ()
    """Steps that become a part of every candidate, as in docs/optimize-conversions.md; samples are what they read."""
    finalists: int = 3
    """Candidates that are served at the end."""
    profile_s: float = 1.0
    """Time of measuring for each candidate under each runtime, and for each load of a finalist."""
    sensitivity_steps: int = 12
    """Conversions that the search for sensitive layers may try for a candidate; 0 for no search."""
    tuning_s: float = 30.0
    """Time for tuning the options of the best candidate's backend; 0 for none."""
    converter_limits: ProcessLimits = field(default_factory=ProcessLimits)
    runner_limits: RunnerLimits = field(default_factory=RunnerLimits)
    accepted: str = ""
    """Name of the candidate that is the winner, if it passes, also against the figures."""
    own: Mapping[str, Path] = field(default_factory=dict)
    """Conversions that the user has made, by name: they are treated like each other candidate."""
    own_precisions: Mapping[str, Precision] = field(default_factory=dict)
    """By name in `own`; FP32 for those that are not named."""
    is_fresh: bool = False
    """Steps of earlier runs in the workspace do not count."""

    def includes(self, candidate: Candidate) -> bool:
        """Return whether the user has asked for a candidate. The source always takes part."""
        return (
            candidate.name == SOURCE
            or candidate.name in self.own
            or (
                (not self.formats or candidate.format in self.formats)
                and (not self.precisions or candidate.precision in self.precisions)
                and (not self.candidates or candidate.name in self.candidates)
            )
        )
