"""The server's side of a publication: load, wait for a version, ask it."""

import asyncio
from collections.abc import Mapping, Sequence

from naiad.client import Client, InferError
from naiad.core.model import IndexEntry, ModelMetadata, ModelState
from naiad.tools.publish.sample import TrialSample

_NO_CONTROL = "explicit model load / unload is not allowed"
_FAILED_UPDATE = "its update failed"
"""In the reason of the version that is served still."""
_POLL_INTERVAL_S = 0.25


class ServingError(Exception):
    """The server does not serve what it should; the message has the reason."""


class ServedModels:
    """The models of one server, for one publication."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self.loads_on_request = True
        """False for a server that follows its repository, or has fixed models."""

    async def learn_control(self, unused_name: str) -> None:
        """Find out how the server loads models, by unloading one that is not there, which succeeds if it may."""
        try:
            await self._client.unload(unused_name, timeout_s=self._timeout_s)
        except InferError as error:
            if _NO_CONTROL not in error.message:
                raise
            self.loads_on_request = False

    async def ready_versions(self, model: str) -> Sequence[int]:
        """Return the versions of a model that are served, lowest first."""
        return sorted(int(entry.version) for entry in await self._rows(model) if entry.state is ModelState.READY)

    async def metadata(self, model: str, version: int | None = None) -> ModelMetadata:
        """Return inputs and outputs of a model."""
        return await self._client.model_metadata(model, str(version or ""))

    async def load(self, model: str, version: int) -> None:
        """Have the server load what is in the repository, and wait until the version is ready.

        Raises ServingError, InferError.
        """
        before = {entry.reason for entry in await self._rows(model)}
        if self.loads_on_request:
            await self._client.load(model, timeout_s=self._timeout_s)
        await self._wait(model, version, before)

    async def push(self, model: str, version: int, config: str, files: Mapping[str, bytes]) -> None:
        """Have the server load a model with its files, and wait until the version is ready.

        `config` is JSON. Raises ServingError, InferError.
        """
        before = {entry.reason for entry in await self._rows(model)}
        await self._client.load(model, config=config, files=files, timeout_s=self._timeout_s)
        await self._wait(model, version, before)

    async def _wait(self, model: str, version: int, before: set[str]) -> None:
        last: Sequence[IndexEntry] = ()
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    last = await self._rows(model)
                    if _is_ready(last, version):
                        return
                    _check_failure(last, version, before)
                    if self.loads_on_request and not any(entry.state is ModelState.LOADING for entry in last):
                        raise ServingError(_not_selected(model, version, last))
                    await asyncio.sleep(_POLL_INTERVAL_S)
        except TimeoutError:
            raise ServingError(
                f"version {version} of '{model}' was not ready within {self._timeout_s:g} s; the server shows "
                f"{_rows_text(last)}. It needs --model-control-mode=explicit or poll"
            ) from None

    async def unload(self, model: str) -> None:
        """Unload a model. Raises InferError."""
        await self._client.unload(model, timeout_s=self._timeout_s)

    async def ask(self, model: str, version: int | None, sample: TrialSample) -> None:
        """Send the sample to a version and check the answer. Raises SampleError, InferError."""
        tensors = sample.tensors(await self.metadata(model, version))
        result = await self._client.infer(model, tensors, version=str(version or ""), timeout_s=self._timeout_s)
        sample.check({name: result[name] for name in result})

    async def _rows(self, model: str) -> Sequence[IndexEntry]:
        return [entry for entry in await self._client.repository_index() if entry.name == model]


def differences(old: ModelMetadata, new: ModelMetadata) -> Sequence[str]:
    """Return how the tensors of two versions differ, a text for each."""
    found = []
    for kind, before, after in (("input", old.inputs, new.inputs), ("output", old.outputs, new.outputs)):
        one = {spec.name: f"{spec.datatype.value} {list(spec.shape)}" for spec in before}
        two = {spec.name: f"{spec.datatype.value} {list(spec.shape)}" for spec in after}
        for name in dict.fromkeys([*one, *two]):
            if one.get(name) != two.get(name):
                found.append(f"{kind} '{name}' is {_of(one, name)} now and {_of(two, name)} in the new version")
    return found


def _of(specs: Mapping[str, str], name: str) -> str:
    return specs.get(name, "missing")


def _is_ready(rows: Sequence[IndexEntry], version: int) -> bool:
    return any(entry.version == str(version) and entry.state is ModelState.READY for entry in rows)


def _check_failure(rows: Sequence[IndexEntry], version: int, before: set[str]) -> None:
    for entry in rows:
        is_new = entry.reason not in before
        if entry.version == str(version) and entry.state is ModelState.UNAVAILABLE and is_new and entry.reason:
            raise ServingError(entry.reason)
        if _FAILED_UPDATE in entry.reason and is_new:
            raise ServingError(entry.reason.partition(f"{_FAILED_UPDATE}: ")[2] or entry.reason)


def _not_selected(model: str, version: int, rows: Sequence[IndexEntry]) -> str:
    return (
        f"the server has not loaded version {version} of '{model}' (it shows {_rows_text(rows)}); check that the "
        "directory is that of the server's --model-repository, and that the model's version_policy selects it"
    )


def _rows_text(rows: Sequence[IndexEntry]) -> str:
    texts = [f"version {entry.version} {entry.state.value if entry.state else 'not loaded'}" for entry in rows]
    return ", ".join(texts) or "no such model"
