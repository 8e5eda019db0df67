"""Model files of forests: which format a file has, and what is wrong with it before a library reads it."""

import re
from dataclasses import dataclass
from pathlib import Path

from naiad.backend.api import ModelContext
from naiad.backend.framework import Parameters, find_model_file
from naiad.config.backends import filenames_of
from naiad.core.errors import InferError, excerpt, invalid_argument

MODEL_TYPES = {
    "xgboost_json": "xgboost.json",
    "xgboost_ubj": "xgboost.ubj",
    "xgboost": "xgboost.model",
    "lightgbm": "model.txt",
    "treelite_checkpoint": "checkpoint.tl",
}
"""Triton: the values of the parameter `model_type`, and the file of each."""

_TAIL_BYTES = 128
_JSON_VERSION = re.compile(rb'"version"\s*:\s*\[\s*(\d+)\s*,\s*(\d+)')
_UBJSON_VERSION = re.compile(rb"version\[(?:#L.{7}\x03)?i(.)i(.)", re.DOTALL)
_CATBOOST = b"CBM1"


@dataclass(frozen=True, slots=True)
class ForestFile:
    """A model file whose format is known."""

    model: str
    """Name of the model, for messages."""
    path: Path
    model_type: str
    """A key of `MODEL_TYPES`."""

    def error(self, problem: str) -> InferError:
        """Return an error that names model and file."""
        return invalid_argument(f"model '{self.model}': {self.path} {problem}")

    def load_error(self, library: str, error: Exception) -> InferError:
        """Return the error for a file that a library cannot read, with the library's reason in one line."""
        return self.error(f"cannot be loaded: {library}: {reason_of(error)}; save the model again and copy all of it")

    def xgboost_version(self) -> tuple[int, int] | None:
        """Return major and minor version of the XGBoost that wrote the file; None when the file does not say."""
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - _TAIL_BYTES))
            tail = file.read()
        if found := _JSON_VERSION.search(tail):
            return int(found[1]), int(found[2])
        if found := _UBJSON_VERSION.search(tail):
            return found[1][0], found[2][0]
        return None


def reason_of(error: Exception) -> str:
    """Return the text of XGBoost, LightGBM or treelite without time, source line and stack trace."""
    text = str(error).partition("Stack trace:")[0]
    text = re.sub(r"^\[[\d:]+\] \S+:\d+: | at /\S+, line \d+ \.$", "", text.strip())
    return excerpt(" ".join(text.split())) or type(error).__name__


def find_forest_file(context: ModelContext, parameters: Parameters) -> ForestFile:
    """Return the file of a model version and its format, by content; `model_type` must agree with it.

    Raises InferError(INVALID_ARG) for a missing, empty, truncated or unknown file.
    """
    wanted = parameters.choice("model_type", tuple(MODEL_TYPES))
    path = find_model_file(context, filenames_of("trees"))
    preferred = context.version_dir / MODEL_TYPES.get(wanted, "")
    if wanted and path.name in MODEL_TYPES.values() and preferred.is_file():
        path = preferred
    found = ForestFile(context.name, path, _identify(path))
    if path.is_file() and path.read_bytes()[:4] == _CATBOOST:
        raise found.error(
            "is a model of CatBoost, which this backend does not read; save it with save_model('model.onnx', "
            "format='onnx') and serve that with the backend onnxruntime"
        )
    if not found.model_type:
        raise found.error(
            "is no model of trees: expected JSON or UBJSON of XGBoost, text of LightGBM or a treelite checkpoint"
        )
    if wanted and wanted != found.model_type:
        raise found.error(
            f"has the format {found.model_type}, but parameter 'model_type' is '{wanted}'; correct the parameter, "
            "or remove it: the format follows from the file"
        )
    return found


def _identify(path: Path) -> str:
    """Return the model type by the first bytes; the formats without a mark by the suffix. Empty when unknown."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        head = file.read(64)
    if head[:1] == b"{":
        # In UBJSON the length of the first key follows, in JSON a quote.
        return "xgboost_json" if head[1:].lstrip()[:1] in (b'"', b"}", b"") else "xgboost_ubj"
    if head.split(b"\n")[0].strip() == b"tree":
        return "lightgbm"
    # Three numbers of four bytes: the version of treelite.
    if len(head) > 12 and 3 <= head[0] < 16 and head[1:4] == b"\0\0\0" and head[5:8] == b"\0\0\0":
        return "treelite_checkpoint"
    return "xgboost" if head and path.suffix == ".model" else ""
