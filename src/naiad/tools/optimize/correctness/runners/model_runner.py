"""What executes a model: arrays in, arrays out."""

import abc
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from naiad.core.tensor import Array

Arrays: TypeAlias = Mapping[str, Array]
"""By the names of inputs or outputs."""


class RunnerError(Exception):
    """The model did not answer: an error, a crash, or a limit of time or memory."""


class Runner(abc.ABC):
    """Executes a model. Methods raise RunnerError."""

    max_batch: int = 0
    """The most rows of a request; 0 if there is no limit."""

    @abc.abstractmethod
    def infer(self, inputs: Arrays) -> Arrays:
        """Execute one request."""

    def infer_concurrently(self, requests: Sequence[Arrays]) -> Sequence[Arrays]:
        """Execute requests, at the same time if the model can; return their outputs in order."""
        return [self.infer(each) for each in requests]

    def close(self) -> None:  # noqa: B027 - not all have something to release
        """Release the model."""


class CallableRunner(Runner):
    """A function of the user, or a framework's model behind one, in this process."""

    def __init__(self, function: Callable[[Arrays], Arrays]) -> None:
        self._function = function

    def infer(self, inputs: Arrays) -> Arrays:
        """Call the function."""
        try:
            return self._function(inputs)
        except Exception as error:
            raise RunnerError(f"{type(error).__name__}: {error}") from error

    def infer_concurrently(self, requests: Sequence[Arrays]) -> Sequence[Arrays]:
        """Call the function in a thread for each request."""
        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(self.infer, requests))


class CountedRunner(Runner):
    """Counts the requests that another runner, which it does not close, answers."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.max_batch = runner.max_batch
        self.requests = 0

    def infer(self, inputs: Arrays) -> Arrays:
        """Execute one request."""
        self.requests += 1
        return self._runner.infer(inputs)

    def infer_concurrently(self, requests: Sequence[Arrays]) -> Sequence[Arrays]:
        """Execute requests at the same time."""
        self.requests += len(requests)
        return self._runner.infer_concurrently(requests)


class RenamedRunner(Runner):
    """A model whose tensors have other names than the source's."""

    def __init__(self, runner: Runner, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
        """Map the source's names of inputs and outputs to the model's."""
        self._runner = runner
        self.max_batch = runner.max_batch
        self._inputs = inputs
        self._outputs = {own: source for source, own in outputs.items()}

    def infer(self, inputs: Arrays) -> Arrays:
        """Execute one request."""
        return _rename(self._runner.infer(_rename(inputs, self._inputs)), self._outputs)

    def infer_concurrently(self, requests: Sequence[Arrays]) -> Sequence[Arrays]:
        """Execute requests at the same time."""
        found = self._runner.infer_concurrently([_rename(inputs, self._inputs) for inputs in requests])
        return [_rename(outputs, self._outputs) for outputs in found]

    def close(self) -> None:
        """Close the model."""
        self._runner.close()


def _rename(arrays: Arrays, names: Mapping[str, str]) -> Arrays:
    return {names.get(name, name): array for name, array in arrays.items()}
