"""Files with estimators: pickles, whose loading executes code, and skops files, whose types are checked."""

import hashlib
import io
import logging
import shlex
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import joblib
from sklearn.exceptions import InconsistentVersionWarning

from naiad.backend.api import ModelContext
from naiad.backend.framework import Parameters, find_model_file, may_unpickle, reason
from naiad.config.backends import filenames_of
from naiad.core.errors import InferError, excerpt, invalid_argument

_log = logging.getLogger(__name__)

_MAX_LIST_CHARACTERS = 4096
"""Of the types in an error message."""
_warnings_lock = threading.Lock()
"""The filters of warnings belong to the whole process."""


def load_estimator(context: ModelContext, parameters: Parameters) -> Any:
    """Return the object in the file of a model version.

    Raises InferError(INVALID_ARG) for a pickle that is not allowed, for types that are not trusted, and for a file
    that cannot be read.
    """
    path = find_model_file(context, filenames_of("sklearn"))
    opening = f"model '{context.name}': {path}"
    if path.suffix == ".skops":
        return _load(opening, context, lambda: _load_skops(opening, path, parameters))
    source = _permitted(opening, path, context, parameters)
    return _load(opening, context, lambda: joblib.load(source))


def _permitted(opening: str, path: Path, context: ModelContext, parameters: Parameters) -> Any:
    """Return what a pickle is loaded from: with a digest exactly the bytes that it was computed of."""
    digest = parameters.text("sha256").strip().lower()
    if not digest:
        if may_unpickle(context):
            return path
        raise invalid_argument(
            f"{opening} is a pickle, and loading a pickle executes its code. If you trust all model files, start the "
            "server with --allow-pickle; to trust this file alone, set the parameter 'sha256' to its digest "
            f"(sha256sum {path.name}); or save the model with skops as model.skops"
        )
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != digest:
        raise invalid_argument(
            f"{opening} is not loaded: its SHA-256 digest is not the parameter 'sha256', '{excerpt(digest)}'; the "
            f"file is another one than the digest was made of (sha256sum {path.name})"
        )
    return io.BytesIO(data)


def _load_skops(opening: str, path: Path, parameters: Parameters) -> Any:
    try:
        import skops.io
    except ModuleNotFoundError:
        raise invalid_argument(
            f"{opening} needs the package skops, which is not installed: pip install 'naiad[sklearn]'"
        ) from None
    trusted = {name.strip() for name in parameters.text("trusted_types").split(",")}
    found = skops.io.get_untrusted_types(file=path)
    unknown = [name for name in found if name not in trusted]
    if unknown:
        raise invalid_argument(
            f"{opening} has types that are not trusted: {_listed(unknown, ', ')}. If you trust their code, serve the "
            f"file with --trusted-types {shlex.quote(_listed(found, ','))}; in a repository, this list is the value "
            "of the parameter 'trusted_types'"
        )
    return skops.io.load(path, trusted=found)


def _listed(names: Sequence[str], separator: str) -> str:
    """Return all names, so that a list can be copied; an excerpt of what is no list of types."""
    text = separator.join(names)
    return text if text.isprintable() and len(text) <= _MAX_LIST_CHARACTERS else excerpt(text)


def _load(opening: str, context: ModelContext, load: Callable[[], Any]) -> Any:
    """Return what `load` returns; the log names the versions of scikit-learn when they differ."""
    try:
        with _warnings_lock, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            estimator = load()
    except InferError:
        raise
    except (ImportError, AttributeError) as error:
        raise invalid_argument(
            f"{opening} needs code that is not there: {reason(error)}; install the package that defines it in the "
            "server's environment, or in one of the model's own (parameters 'isolation' and 'EXECUTION_ENV_PATH')"
        ) from error
    except Exception as error:  # damaged files fail with any exception
        raise invalid_argument(
            f"{opening} cannot be loaded: {reason(error)}; it is truncated or of another format, copy the whole file"
        ) from error
    for warning in caught:
        message = warning.message
        if isinstance(message, InconsistentVersionWarning):
            _log.warning(
                "%s was saved with scikit-learn %s, installed is %s: results may differ; train it again, or install "
                "that version", opening, message.original_sklearn_version, message.current_sklearn_version,
            )  # fmt: skip
            break
    return estimator
