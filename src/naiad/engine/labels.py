"""Label files: the names of an output's classes, one a line."""

from collections.abc import Sequence
from pathlib import Path

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import invalid_argument

_MAX_BYTES = 64 * 1024 * 1024


def read_labels(config: ModelConfig, model_dir: Path) -> dict[str, Sequence[str]]:
    """Return the labels of every output that has a `label_filename`.

    Raises InferError(INVALID_ARG) when a file is missing, not text, or outside the model's directory.
    """
    labels: dict[str, Sequence[str]] = {}
    for output in config.output:
        if output.label_filename:
            labels[output.name] = _read(config.name, output.name, output.label_filename, model_dir)
    return labels


def _read(model: str, output: str, filename: str, model_dir: Path) -> Sequence[str]:
    where = f"label_filename '{filename}' of output '{output}' of model '{model}'"
    path = model_dir / filename
    # The name must stay inside the directory as written; a link in the directory is the operator's own choice.
    if Path(filename).is_absolute() or ".." in Path(filename).parts:
        raise invalid_argument(f"{where} must be inside the model's directory {model_dir}")
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise invalid_argument(f"{where} is larger than {_MAX_BYTES} bytes: is it a label file?")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise invalid_argument(f"{where} cannot be read: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise invalid_argument(f"{where} is not UTF-8 text: {error}") from error
    # Not splitlines(): a label may hold what that takes for the end of a line.
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]
