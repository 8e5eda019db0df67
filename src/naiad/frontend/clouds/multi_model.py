"""Multi-model endpoints of SageMaker: it unpacks the archive of a model and names its directory in a load request.

A model has three names: the hash in the paths of SageMaker, the name of the archive in a header field, and the name
of its directory. Metrics and responses have the second where SageMaker sends it, otherwise the first.
"""

import functools
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from naiad.core.errors import ErrorCode, InferError, excerpt, internal, invalid_argument, not_found, unsupported
from naiad.engine.engine import Engine
from naiad.frontend.context import HttpContext
from naiad.frontend.long_work.thread_pool import RunInThread
from naiad.frontend.reply_headers import JSON_HEADERS
from naiad.frontend.router import respond_error, respond_infer_error
from naiad.protocol.json.tree import parse_control_document
from naiad.protocol.status_table import status_of
from naiad.repository.stores.store import CONFIG_FILE, RenamingStore, Store, check_model_name

_log = logging.getLogger(__name__)

_TARGET_MODEL = b"x-amzn-sagemaker-target-model"
_MODEL_DIRECTORY = re.compile(r"[0-9A-Za-z._-]+/model(?:/[0-9A-Za-z._-]+)?")
_ENSEMBLE = re.compile(r'platform\s*:\s*"ensemble"|ensemble_scheduling')
_OUT_OF_MEMORY = re.compile(
    r"out[ _]?of[ _]?memory|MemoryError|\bOOM\b|(?:Dst|Src) tensor is not initialized|CUDNN_STATUS_NOT_INITIALIZED"
    r"|CUBLAS_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|failed to allocate memory|No space left on device",
    re.IGNORECASE,
)
_CONFLICT = 409
_INSUFFICIENT_STORAGE = 507


def is_out_of_memory(message: str) -> bool:
    """Return whether the message of an error reports a lack of memory or disk space. Triton: by its words."""
    return _OUT_OF_MEMORY.search(message) is not None


@dataclass(slots=True)
class _Model:
    """A model that SageMaker has loaded."""

    name: str
    """The name inside the server."""
    url: str
    store: Store | None = None
    """None while it loads."""
    is_serving: bool = False


class MultiModelRoutes:
    """The actions of `/models`. Called on the event loop; loads and unloads run on other threads."""

    def __init__(
        self, engine: Engine, run_control: RunInThread, directory: Path, unsupported_reason: str = ""
    ) -> None:
        """`directory` has the unpacked archives; `unsupported_reason` says why this server loads no model."""
        self._engine = engine
        self._run_control = run_control
        self._directory = directory
        self._unsupported_reason = unsupported_reason
        self._models: dict[str, _Model] = {}
        """By the names in SageMaker's paths."""

    def model(self, name: str) -> str:
        """Return the name inside the server of a serving model. Raises InferError(NOT_FOUND)."""
        return self._serving(name).name

    def _serving(self, name: str) -> _Model:
        model = self._models.get(name)
        if model is None or not model.is_serving:
            raise not_found(f"model '{excerpt(name)}' is not loaded; load it with POST /models")
        return model

    # --- queries ----------------------------------------------------------------------------------------------------

    def list(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Respond with the loaded models."""
        models = [
            _row(name, model)
            for name, model in self._models.items()
            if model.is_serving and self._engine.views.is_model_ready(model.name)
        ]
        context.respond(200, JSON_HEADERS, (orjson.dumps({"models": models}),))

    def get(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Respond with one model."""
        name = arguments["name"]
        context.respond(200, JSON_HEADERS, (orjson.dumps(_row(name, self._serving(name))),))

    # --- load -------------------------------------------------------------------------------------------------------

    def load(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Load a model from its directory and respond when it is ready: 409 if it is loaded, 507 without memory."""
        if self._unsupported_reason:
            raise unsupported(f"multi-model endpoints are not supported with {self._unsupported_reason}")
        document = parse_control_document(context.body)
        name, url = (_text(document, member) for member in ("model_name", "url"))
        if name in self._models:
            respond_error(context, _CONFLICT, f"model '{excerpt(name)}' is loaded already")
            return
        directory = self._check_url(url)
        model = _Model(_inner_name(context, name), url)
        self._models[name] = model
        _log.info("Loading SageMaker TargetModel: %s", excerpt(model.name))
        work = functools.partial(self._load, directory, model.name)
        done = functools.partial(self._loaded, context, model)
        self._run_control(work, done, functools.partial(self._not_loaded, context, name))

    def _check_url(self, url: str) -> Path:
        """Return the directory of a load request. Raises InferError for one outside of SageMaker's models."""
        directory = Path(os.path.normpath(url))
        is_inside = directory.is_relative_to(self._directory)
        if not is_inside or not _MODEL_DIRECTORY.fullmatch(str(directory.relative_to(self._directory))):
            form = f"{self._directory}/<hash>/model[/<subdir>]"
            raise invalid_argument(f"Invalid \"url\" '{excerpt(url)}': expected a path of the form {form}")
        return directory

    def _load(self, directory: Path, name: str) -> Store:
        store = _open(directory, name)
        self._engine.repository.load_from(store, name)
        return store

    def _loaded(self, context: HttpContext, model: _Model, store: Store) -> None:
        model.store, model.url, model.is_serving = store, store.location, True
        context.respond(200, JSON_HEADERS, ())

    def _not_loaded(self, context: HttpContext, name: str, error: Exception) -> None:
        del self._models[name]
        if not isinstance(error, (InferError, OSError)):
            _log.error("loading '%s' failed", excerpt(name), exc_info=error)
            error = internal("internal error; see the server log")
        message = error.message if isinstance(error, InferError) else f"'{excerpt(name)}' cannot be read: {error}"
        if is_out_of_memory(message):
            status = _INSUFFICIENT_STORAGE
        elif isinstance(error, InferError) and error.code is ErrorCode.ALREADY_EXISTS:
            status = _CONFLICT
        else:
            status = status_of(error).http if isinstance(error, InferError) else 400
        respond_error(context, status, message)

    # --- unload -----------------------------------------------------------------------------------------------------

    def unload(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        """Unload a model and respond when its requests have finished and its memory is free."""
        name = arguments["name"]
        model = self._serving(name)
        assert model.store is not None
        model.is_serving = False
        _log.info("Unloading SageMaker TargetModel: %s", excerpt(model.name))
        work = functools.partial(self._engine.repository.unload_from, model.store, model.name)
        done = functools.partial(self._unloaded, context, name)
        self._run_control(work, done, functools.partial(self._not_unloaded, context, model))

    def _unloaded(self, context: HttpContext, name: str, result: object) -> None:
        del self._models[name]
        context.respond(200, JSON_HEADERS, ())

    def _not_unloaded(self, context: HttpContext, model: _Model, error: Exception) -> None:
        model.is_serving = True
        if not isinstance(error, InferError):
            _log.error("unloading '%s' failed", excerpt(model.name), exc_info=error)
            error = internal("internal error; see the server log")
        respond_infer_error(context, error)


def _row(name: str, model: _Model) -> dict[str, str]:
    return {"modelName": name, "modelUrl": model.url}


def _text(document: object, member: str) -> str:
    value = document.get(member) if isinstance(document, Mapping) else None
    if not isinstance(value, str) or not value:
        raise invalid_argument(
            f'a load request needs \'{member}\', a string, such as {{"model_name": "a", "url": "/b"}}'
        )
    return value


def _inner_name(context: HttpContext, name: str) -> str:
    """Return the name of the archive if SageMaker sends it and the server can use it, otherwise its own name."""
    target = context.headers.get(_TARGET_MODEL, b"").decode("latin-1")
    for candidate in (target, name):
        try:
            check_model_name(candidate)
        except InferError:
            continue
        return candidate
    raise invalid_argument(f"'model_name': '{excerpt(name)}' cannot be the name of a model")


def _open(directory: Path, name: str) -> Store:
    """Return the repository of an unpacked archive: one model, or an ensemble with its members.

    Triton: a directory with a config.pbtxt is a model, any other a repository whose ensemble or only model is served.
    """
    if (directory / CONFIG_FILE).is_file():
        return RenamingStore(directory.parent, directory.name, name)
    models = sorted(child for child in directory.iterdir() if child.is_dir() and not child.name.startswith("."))
    served = [model for model in models if _is_ensemble(model)] or models
    if not served:
        raise invalid_argument(f"{directory} has no model: expected a directory with {CONFIG_FILE}")
    return RenamingStore(directory, served[-1].name, name)


def _is_ensemble(model: Path) -> bool:
    config = model / CONFIG_FILE
    return config.is_file() and _ENSEMBLE.search(config.read_text(errors="replace")) is not None
