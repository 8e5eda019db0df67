"""The answers of a served model under load, beside the source's."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from naiad.client import Client
from naiad.core.tensor import Array, TensorSpec
from naiad.tools.optimize.candidate import Candidate
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.model_runner import Arrays, CallableRunner
from naiad.tools.optimize.correctness.sample_comparison import CandidateComparison, describe
from naiad.tools.optimize.correctness.source_reference import SourceAnswers
from naiad.tools.optimize.correctness.tensor_names import match_names

_COPIES = 2
"""Requests of each sample."""


@dataclass(frozen=True, slots=True)
class LoadCheck:
    """The source's answers to the samples of the load, as single requests."""

    answers: Sequence[Arrays]
    settings: Settings

    async def difference(
        self,
        client: Client,
        candidate: Candidate,
        samples: Sequence[Arrays],
        inputs: Mapping[str, str],
        concurrency: int,
        outputs: Sequence[TensorSpec] = (),
    ) -> str:
        """Send all samples, `concurrency` requests at a time, so that the server makes batches of them.

        `inputs` are the model's names by the source's. Returns the first difference that exceeds the limits in a
        sentence, or "". Raises InferError, RunnerError.
        """
        own = (await client.model_metadata(candidate.name)).outputs
        names = match_names(outputs, own, "outputs") if outputs else {name: name for name in self.answers[0]}
        comparison = self._comparison(candidate)
        free = asyncio.Semaphore(concurrency)

        async def compare(index: int) -> str:
            request = {inputs[name]: self._rows(array) for name, array in samples[index].items()}
            async with free:
                found = await client.infer(candidate.name, request)
            return self._difference(comparison, index, {name: found[own] for name, own in names.items()})

        tasks = [compare(place % len(samples)) for place in range(_COPIES * len(samples))]
        return next((text for text in await asyncio.gather(*tasks) if text), "")

    def _rows(self, array: Array) -> Array:
        return array[None] if self.settings.has_batch else array

    def _comparison(self, candidate: Candidate) -> CandidateComparison:
        source = SourceAnswers(CallableRunner(dict), self.settings)
        for answer in self.answers:
            source.observe(answer)
        source.finish()
        return CandidateComparison(self.settings, candidate, source.outputs)

    def _difference(self, comparison: CandidateComparison, index: int, found: Arrays) -> str:
        budget = self.settings.budget
        for name in self.answers[index]:
            if (budget is not None and budget.labels.output == name) or name not in found:
                continue
            result = comparison.compare(name, self.answers[index], found[name])
            if not result.is_within:
                assert result.worst is not None
                return describe(name, index, result.worst, "the source", "the served model") + " under load"
        return ""
