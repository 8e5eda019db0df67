"""The source's answers to many made rows, in as few requests as it takes."""

import time
from collections.abc import Mapping, Sequence

import numpy as np

from naiad.core.tensor import Array
from naiad.tools.optimize.correctness.judgement_settings import Settings
from naiad.tools.optimize.correctness.runners.model_runner import Arrays, Runner, RunnerError

_ROWS = 64
"""Of a request to a source without a limit."""
_TIME_S = 20.0


class RowAnswers:
    """Asks a source, for a limited time."""

    def __init__(self, source: Runner, settings: Settings) -> None:
        self._source = source
        self._has_batch = settings.has_batch
        self._end_s = time.monotonic() + _TIME_S

    def of(self, samples: Sequence[Mapping[str, Array]]) -> list[Arrays]:
        """Return the answer to each sample.

        Raises RunnerError if the source does not take them, or if the time is over.
        """
        found: list[Arrays] = []
        rows = min(self._source.max_batch or _ROWS, _ROWS) if self._has_batch else 1
        for start in range(0, len(samples), rows):
            if time.monotonic() > self._end_s:
                raise RunnerError("there was no time to ask the source")
            found += self._rows(samples[start : start + rows])
        return found

    def _rows(self, samples: Sequence[Mapping[str, Array]]) -> list[Arrays]:
        if not self._has_batch:
            return [self._source.infer(each) for each in samples]
        if len({tuple(array.shape for array in each.values()) for each in samples}) > 1:
            return [self._source.infer({name: array[None] for name, array in each.items()}) for each in samples]
        answer = self._source.infer({name: np.stack([each[name] for each in samples]) for name in samples[0]})
        if any(not array.ndim or len(array) != len(samples) for array in answer.values()):
            raise RunnerError("the source does not answer row by row")
        return [{name: array[row : row + 1] for name, array in answer.items()} for row in range(len(samples))]
