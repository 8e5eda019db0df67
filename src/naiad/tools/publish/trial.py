"""The trial of a new version under another name, before it becomes a version of a model that is served."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

from naiad.client import InferError
from naiad.tools.publish.publication_serving import ServedModels, ServingError, differences
from naiad.tools.publish.sample import SampleError, TrialSample

CANDIDATE_SUFFIX = ".candidate"
OnStep: TypeAlias = Callable[[str], None]
"""Gets a sentence for each step."""


class PublishError(ValueError):
    """Nothing was published; the message has model, reason, and what is served now."""


class Trial:
    """Compares and asks the candidate of one model."""

    def __init__(
        self,
        served: ServedModels,
        model: str,
        sample: TrialSample | None,
        on_step: OnStep,
        *,
        allows_other_tensors: bool,
    ) -> None:
        self._served = served
        self._model = model
        self._sample = sample
        self._step = on_step
        self._allows_other_tensors = allows_other_tensors
        self.candidate = model + CANDIDATE_SUFFIX

    async def run(self, load: Callable[[], Awaitable[None]]) -> None:
        """Have the server load the candidate with `load`, judge it, and unload it. Raises PublishError."""
        self._step(f"try '{self.candidate}'")
        try:
            async with self._unloaded():
                await load()
                await self._compare()
                await self.ask(self.candidate)
        except (InferError, ServingError, SampleError) as error:
            reason = reason_of(error).replace(f"'{self.candidate}'", f"'{self._model}'")
            raise PublishError(
                f"model '{self._model}' was not published: {reason}. The version that was served is served still"
            ) from error

    async def ask(self, model: str, version: int | None = None) -> None:
        """Send the sample to a model, if there is one. Raises SampleError, InferError."""
        if self._sample is not None:
            self._step(f"ask '{model}'")
            await self._served.ask(model, version, self._sample)

    @contextlib.asynccontextmanager
    async def _unloaded(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self._served.unload(self.candidate)

    async def _compare(self) -> None:
        served, tried = [await self._served.metadata(name) for name in (self._model, self.candidate)]
        found = differences(served, tried)
        if found and not self._allows_other_tensors:
            raise ServingError(
                f"{'; '.join(found)}. Clients of the model would fail; publish it under another name, or allow "
                "other tensors"
            )


def reason_of(error: Exception) -> str:
    """Return the text of an error, as a part of a sentence."""
    text = error.message if isinstance(error, InferError) else str(error)
    return text.rstrip(".;")
