"""The file or directory of a model version."""

from collections.abc import Sequence
from pathlib import Path

from naiad.backend.api import ModelContext
from naiad.core.errors import invalid_argument


def find_model_file(context: ModelContext, filenames: Sequence[str]) -> Path:
    """Return `default_model_filename`, or the first of `filenames` that is in the version directory.

    The result may be a directory: a SavedModel is one. Raises InferError(INVALID_ARG) when there is none.
    """
    wanted = [context.config.default_model_filename] if context.config.default_model_filename else filenames
    for name in wanted:
        path = context.version_dir / name
        if path.exists():
            return path
    raise invalid_argument(
        f"model '{context.name}' version {context.version}: there is no file {context.version_dir / wanted[0]}"
        f"{_alternatives(wanted)}; put the model there, or name another one with 'default_model_filename'"
    )


def _alternatives(wanted: Sequence[str]) -> str:
    return f" (or {', '.join(wanted[1:])})" if len(wanted) > 1 else ""
