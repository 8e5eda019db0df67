"""The verdicts on conversions, each run in a process of its own and kept in the journal."""

import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.version import __version__
from naiad.files.json_records import read_record
from naiad.tools.optimize.candidate import Conversion
from naiad.tools.optimize.correctness.candidate_repository import write_repository
from naiad.tools.optimize.correctness.gate import judge
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.isolated import CandidateLimits, IsolatedRunner
from naiad.tools.optimize.correctness.runners.model_runner import Runner, RunnerError
from naiad.tools.optimize.correctness.tensor_names import with_names_of
from naiad.tools.optimize.optimize_source import Format, Samples, Source
from naiad.tools.optimize.profile.candidate_configuration import configuration, set_parameters, write_model
from naiad.tools.optimize.profile.measuring import BATCHES
from naiad.tools.optimize.results.candidate_measurement import Runtime
from naiad.tools.optimize.results.verdict import Difference, Verdict
from naiad.tools.optimize.sources.source_declaration import declaration
from naiad.tools.optimize.steps.step_journal import StepJournal, key_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Judge:
    """Compares conversions with the answers of the source."""

    source: Source
    answers: Runner
    """The source's."""
    samples: Samples
    samples_digest: str
    settings: Settings
    limits: CandidateLimits
    journal: StepJournal

    def verdict(self, conversion: Conversion, runtime: Runtime | None = None) -> tuple[Verdict, bool]:
        """Return the verdict and whether the candidate was run now. Raises RunnerError if the source fails.

        With a `runtime`, the conversion is run with its options.
        """
        options = runtime.parameters if runtime is not None else {}
        budget = self.settings.budget
        scored = (budget.metric, budget.max_drop, budget.labels.output, budget.labels.values) if budget else None
        if budget and not isinstance(budget.metric, str):
            return self._judge(conversion, options), True  # A function has no content that could be a key.
        rules = (self.settings.tolerances, self.settings.kinds, self.settings.behaviour_samples, scored)
        parts = (
            __version__,
            conversion.folder.parent.name,
            self.source.has_batch,
            self.samples_digest,
            rules,
            self.limits,
            options,
        )
        return self.journal.step(
            "verdict", key_of(parts), lambda: self._judge(conversion, options), partial(read_record, Verdict)
        )

    def _judge(self, conversion: Conversion, options: Mapping[str, str]) -> Verdict:
        candidate = conversion.candidate
        with tempfile.TemporaryDirectory(prefix="naiad-judge-") as home:
            try:
                runner = open_conversion(conversion, self.source, options, Path(home), self.limits)
            except RunnerError as error:
                return _unserved(f"naiad does not load {candidate.name}: {error}")
            try:
                named = with_names_of(self.source.inputs, self.source.outputs, runner, runner.inputs, runner.outputs)
            except RunnerError as error:
                runner.close()
                return _unserved(f"{candidate.name} has other tensors: {error}")
            try:
                settings = with_traits_of(self.source, self.settings)
                return judge(self.answers, named, self.samples, candidate, settings)
            finally:
                runner.close()


def open_conversion(
    conversion: Conversion, source: Source, options: Mapping[str, str], home: Path, limits: CandidateLimits
) -> IsolatedRunner:
    """Load a conversion with the batches that it may be served with, or as its file is. Raises RunnerError.

    `options` are parameters of the backend; the repository is written to `home`.
    """
    candidate = conversion.candidate
    may_unpickle = candidate.format is Format.TORCH  # It was allowed when the file was opened.
    if source.has_batch:
        text = configuration(candidate, conversion, source, Runtime(parameters=options), BATCHES[-1])
        write_model(home / "batches", conversion, text)
        try:
            return IsolatedRunner(home / "batches", candidate.name, limits, may_unpickle=may_unpickle)
        except RunnerError as error:
            # Its batch dimension does not vary, or it does not load at all; then the next attempt says why.
            _log.debug("%s is not served with batches of %d: %s", candidate.name, BATCHES[-1], error)
    config = ModelConfig()
    set_parameters(config, options)
    repository = write_repository(conversion, home / "declared", f"{declaration(conversion, source)}{config}")
    return IsolatedRunner(repository, candidate.name, limits, may_unpickle=may_unpickle)


def with_traits_of(source: Source, settings: Settings) -> Settings:
    """Return the settings with what is known of the source: lengths that it leaves open, how it reads its inputs."""
    first = int(source.has_batch)
    axes = {
        spec.name: [axis - first for axis, length in enumerate(spec.shape) if length == -1 and axis >= first]
        for spec in source.inputs
    }
    return replace(settings, variable_axes=axes, compares_inputs=source.format is Format.XGBOOST)


def _unserved(message: str) -> Verdict:
    return Verdict(False, [Difference("", "run", -1, (), "an answer", "none", 0.0, message)])
