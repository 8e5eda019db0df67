"""Publishes a model: writes it as the next version, has the server load it, asks it, and takes it back if it fails.

A model that is served already is tried first: the server loads the new version under the name `MODEL.candidate`,
which answers the sample. Only then does it become a version of the model, so clients never get an answer of a version
that fails. A server that follows its repository by polling loads no candidate; there the version is published at
once, and taken back if its load or its sample fails.
"""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from naiad.client import Client, InferError
from naiad.config.forms.pbtxt.text_format import format_config
from naiad.files.below import COMPILED_DIR
from naiad.repository.stores.new_version import NewVersion, added_version, shared_files
from naiad.repository.stores.store import CONFIG_FILE, list_version_dirs, read_file_text
from naiad.tools.publish.lock import LockedError, publishing
from naiad.tools.publish.publication_serving import ServedModels, ServingError
from naiad.tools.publish.publication_source import PublicationSource, SourceError, parsed_config
from naiad.tools.publish.sample import SampleError, TrialSample
from naiad.tools.publish.trial import CANDIDATE_SUFFIX, OnStep, PublishError, Trial, reason_of

_OF_VERSIONS = frozenset({"rollout.toml"})
"""Shared files that name versions, which a candidate does not have."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Publication:
    """A model to publish."""

    source: PublicationSource
    repository: Path
    """Directory that the server has as its --model-repository."""
    sample: TrialSample | None = None
    allows_other_tensors: bool = False
    """Replace a version that has other inputs or outputs."""
    keep_versions: int = 0
    """Remove older versions than these when the new one is ready, unless they are served; 0 to keep all."""
    timeout_s: float = 600.0
    """Of each load and request."""


@dataclass(frozen=True, slots=True)
class Published:
    """What is served now."""

    model: str
    version: int
    path: Path | None
    """The version's directory; None if the files went with the load request."""


async def publish(client: Client, publication: Publication, on_step: OnStep = _log.info) -> Published:
    """Publish a model, or change nothing.

    Raises PublishError, InferError of a server that refuses model control, ConnectionFailedError.
    """
    repository, model = publication.repository, publication.source.model
    if not repository.is_dir():
        raise PublishError(
            f"repository {repository} is not a directory; give the directory of the server's --model-repository"
        )
    try:
        with publishing(repository, model):
            return await _Run(client, publication, on_step).publish()
    except LockedError as error:
        raise PublishError(str(error)) from error
    except OSError as error:
        raise PublishError(f"model '{model}' was not published: {error}") from error


class _Run:
    def __init__(self, client: Client, publication: Publication, on_step: OnStep) -> None:
        self._repository = publication.repository
        self._model = publication.source.model
        self._new = publication.source.new
        self._keep = publication.keep_versions
        self._step = on_step
        self._served = ServedModels(client, publication.timeout_s)
        self._trial = Trial(
            self._served,
            self._model,
            publication.sample,
            on_step,
            allows_other_tensors=publication.allows_other_tensors,
        )
        self._before: Sequence[int] = ()
        """Versions that were served at the beginning."""

    async def publish(self) -> Published:
        published = await self._publish()
        if self._keep:
            await self._remove_old()
        return published

    async def _publish(self) -> Published:
        candidate = self._model + CANDIDATE_SUFFIX
        await self._served.learn_control(candidate)
        shutil.rmtree(self._repository / candidate, ignore_errors=True)  # of a publication that was killed
        self._before = await self._served.ready_versions(self._model)
        if not (self._before and self._served.loads_on_request):
            return await self._replace(self._new)
        with self._candidate(candidate) as files:
            await self._trial.run(lambda: self._served.load(candidate, 1))
            return await self._replace(replace(self._new, files=files, are_owned=True))

    @contextlib.contextmanager
    def _candidate(self, candidate: str) -> Iterator[dict[str, Path]]:
        """Add the new version as a model of its own; give its files, for as long as the body runs."""
        target = self._repository / self._model
        there = shared_files(target) if target.exists() else ()
        beside = {each.name: each for each in [*there, *self._new.beside] if each.name not in _OF_VERSIONS}
        config = _config_for_trial(self._new.config or _text_of(target / CONFIG_FILE), candidate, target)
        trial = NewVersion(self._new.files, list(beside.values()), config)
        with added_version(self._repository, candidate, trial, is_temporary=True) as added:
            yield {each.name: each for each in added.path.iterdir() if each.name != COMPILED_DIR}

    async def _replace(self, new: NewVersion) -> Published:
        """Add the version and have it loaded; on failure take it back, and load the old one. Raises PublishError."""
        try:
            with added_version(self._repository, self._model, new) as added:
                self._step(f"load version {added.version} of '{self._model}'")
                await self._served.load(self._model, added.version)
                await self._trial.ask(self._model, added.version)
        except (InferError, ServingError, SampleError) as error:
            state = await self._back()
            raise PublishError(f"model '{self._model}' was not published: {reason_of(error)}. {state}") from error
        except asyncio.CancelledError:
            await self._back()
            raise
        self._step(f"version {added.version} of '{self._model}' is ready")
        return Published(self._model, added.version, added.path)

    async def _back(self) -> str:
        """Have the server read the repository without the new version; return what it serves."""
        self._step(f"take back the new version of '{self._model}'")
        if not self._served.loads_on_request:
            return "The repository is as it was; the server follows it"
        try:
            if not self._before:
                await self._served.unload(self._model)
                return "The repository is as it was; the model was not served before"
            await self._served.load(self._model, self._before[-1])
        except (InferError, ServingError) as error:
            return f"The repository is as it was, but the old version does not load either: {reason_of(error)}"
        return f"Version {self._before[-1]} is served, as before"

    async def _remove_old(self) -> None:
        served = await self._served.ready_versions(self._model)
        for version, path in list(list_version_dirs(self._repository / self._model).items())[: -self._keep]:
            if version not in served:
                self._step(f"remove version {version} of '{self._model}'")
                shutil.rmtree(path)


def _config_for_trial(text: str, candidate: str, model: Path) -> str:
    """Return the configuration of the candidate, which has another name and only one version."""
    if not text:
        return ""
    try:
        config = parsed_config(text, str(model / CONFIG_FILE))
    except SourceError as error:
        raise PublishError(f"model '{model.name}' was not published: {error}") from error
    config.name = candidate
    config.ClearField("version_policy")
    return format_config(config)


def _text_of(config: Path) -> str:
    return read_file_text(config) if config.exists() else ""
