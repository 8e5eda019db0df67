"""Publishes a model to a server whose repository is out of reach: the files go with the load request."""

import logging
from collections.abc import Mapping
from pathlib import Path

from naiad.client import Client, InferError
from naiad.config.forms.json_form import config_to_json
from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.config.model_config_pb2 import ModelConfig
from naiad.files.below import files_below
from naiad.repository.stores.new_version import NewVersion
from naiad.tools.publish.publication import Published
from naiad.tools.publish.publication_serving import ServedModels, ServingError
from naiad.tools.publish.publication_source import PublicationSource
from naiad.tools.publish.sample import SampleError, TrialSample
from naiad.tools.publish.trial import OnStep, PublishError, Trial, reason_of

MAX_PUSH_BYTES = 1 << 30
"""Of all files of a model: they are in memory, base64 over HTTP."""
_log = logging.getLogger(__name__)


async def push(
    client: Client,
    source: PublicationSource,
    sample: TrialSample | None = None,
    *,
    allows_other_tensors: bool = False,
    timeout_s: float = 600.0,
    on_step: OnStep = _log.info,
) -> Published:
    """Have the server replace the versions of a model by this one; the number is one above theirs.

    A model that is served already is tried first, as `publish` does. The server keeps the files until the model is
    unloaded. Raises PublishError, InferError of a server that refuses model control, ConnectionFailedError.
    """
    served = ServedModels(client, timeout_s)
    trial = Trial(served, source.model, sample, on_step, allows_other_tensors=allows_other_tensors)
    await served.learn_control(trial.candidate)
    before = await served.ready_versions(source.model)
    version = max(before, default=0) + 1
    files = _files(source.new, source.model)
    if before:
        await trial.run(lambda: served.push(trial.candidate, 1, _config(source.new, trial.candidate), _at(1, files)))
    try:
        on_step(f"send version {version} of '{source.model}'")
        await served.push(source.model, version, _config(source.new, source.model), _at(version, files))
        if not before:
            await trial.ask(source.model, version)
    except (InferError, ServingError, SampleError) as error:
        state = "The version that was served before is served still"
        if not before:
            await served.unload(source.model)
            state = "The model was not served before"
        raise PublishError(f"model '{source.model}' was not published: {reason_of(error)}. {state}") from error
    on_step(f"version {version} of '{source.model}' is ready")
    return Published(source.model, version, None)


def _files(new: NewVersion, model: str) -> Mapping[str, bytes]:
    """Return the content of all files: `/name` is in the version's directory, `name` beside it."""
    places = {f"/{name}": path for name, path in new.files.items()} | {path.name: path for path in new.beside}
    found: dict[str, Path] = {}
    for name, path in places.items():
        found |= {f"{name}/{each.relative_to(path)}" if path.is_dir() else name: each for each in files_below(path)}
    size_bytes = sum(each.stat().st_size for each in found.values())
    if size_bytes > MAX_PUSH_BYTES:
        raise PublishError(
            f"model '{model}' has {size_bytes} bytes, and a load request takes at most {MAX_PUSH_BYTES}; name the "
            "directory of the server's repository instead"
        )
    return {name: path.read_bytes() for name, path in found.items()}


def _at(version: int, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return {f"{version}{name}" if name.startswith("/") else name: content for name, content in files.items()}


def _config(new: NewVersion, model: str) -> str:
    config = parse_pbtxt(new.config).config if new.config else ModelConfig()
    config.name = model
    return config_to_json(config).decode()
