"""An MLflow directory: its `MLmodel` file, whether loading it executes code of the directory, and its digest."""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlflow.models import Model as MlflowModel

from naiad.backend.api import ModelContext
from naiad.backend.framework import ModelFile, Parameters, find_model_file, may_unpickle, reason
from naiad.config.backends import filenames_of
from naiad.core.errors import excerpt
from naiad.files.temporary import own_directory

DIGEST_COMMAND = "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
"""What prints the digest of the directory that it runs in."""
_FLAVOR = "python_function"
_CHUNK_BYTES = 1 << 20


class MlflowDirectory(ModelFile):
    """The files of one model version."""

    def __init__(self, context: ModelContext) -> None:
        """Read the `MLmodel` file. Raises InferError(INVALID_ARG)."""
        super().__init__(context, find_model_file(context, filenames_of("mlflow")).parent)
        self._digest = Parameters(context.config, context.backend_config).text("sha256").strip().lower()
        self._is_allowed = may_unpickle(context)
        try:
            self.model = MlflowModel.load(str(self.path / "MLmodel"))
            known = {name: dict(flavor) for name, flavor in self.model.flavors.items()}
        except Exception as error:  # of MLflow, and of the YAML reader
            raise self.error(
                f"has an MLmodel file that cannot be read: {reason(error)}; copy the whole directory again"
            ) from error
        if _FLAVOR not in known:
            raise self.error(
                f"has no flavour '{_FLAVOR}', only {', '.join(known) or 'none'}; save the model with MLflow's own "
                "save_model of its framework"
            )
        self._flavors: Mapping[str, Mapping[str, Any]] = known

    @property
    def loader(self) -> str:
        """The module that loads the model."""
        return str(self._flavors[_FLAVOR].get("loader_module", ""))

    @contextmanager
    def permitted(self) -> Iterator[Path]:
        """Give the directory to load from: with a digest a copy of exactly the files that it was computed of.

        Raises InferError(INVALID_ARG) for a directory that executes code and is not permitted.
        """
        if self._digest:
            with own_directory("mlflow") as directory:
                copy = directory / self.path.name
                _copy_files(self.path, copy)
                found = digest_of(copy)
                if found != self._digest:
                    raise self.error(
                        f"is not loaded: its SHA-256 digest is not the parameter 'sha256', "
                        f"'{excerpt(self._digest)}'; its files are other ones than the digest was made of (in the "
                        f"directory: {DIGEST_COMMAND})"
                    )
                yield copy
            return
        danger = code_reason(self.path, self._flavors)
        if danger and not self._is_allowed:
            raise self.error(
                f"{danger}, and loading it executes code of the directory. If you trust all model files, start the "
                "server with --allow-pickle; to trust this directory alone, set the parameter 'sha256' to its digest "
                f"(in the directory: {DIGEST_COMMAND}); or save the model in a format without code (XGBoost, Booster "
                "of LightGBM, ONNX, scikit-learn with serialization_format='skops')"
            )
        yield self.path


def code_reason(path: Path, flavors: Mapping[str, Mapping[str, Any]]) -> str:
    """Return why loading a directory executes code that it contains, empty if it does not."""
    function = flavors[_FLAVOR]
    if any(flavor.get("code") for flavor in flavors.values()):
        return "has Python files of its own ('code')"
    loader = str(function.get("loader_module", ""))
    own = flavors.get(loader.removeprefix("mlflow."), {})
    # A directory there could have an MLmodel file of its own, which the loader would follow.
    file = path / str(function.get("model_path" if loader == "mlflow.sklearn" else "data", ""))
    is_own_file = file.parent == path and file.is_file()
    is_data = {
        "mlflow.sklearn": own.get("serialization_format") == "skops"
        and not own.get("skops_trusted_types")
        and "data" not in function,
        "mlflow.xgboost": str(own.get("model_class", "xgboost.")).startswith("xgboost."),
        "mlflow.lightgbm": own.get("model_class", "lightgbm.basic.Booster") == "lightgbm.basic.Booster",
        "mlflow.onnx": True,
    }.get(loader, False)
    if is_data and is_own_file:
        return ""
    return f"is loaded by '{excerpt(loader)}' from a pickle, from a format with code or from an unknown one"


def digest_of(path: Path) -> str:
    """Return the digest of a directory, as `DIGEST_COMMAND` prints it: of names and contents of all files."""
    whole = hashlib.sha256()
    names = sorted(os.fsencode(f"./{file.relative_to(path)}") for file in _files(path))
    for name in names:
        digest = hashlib.sha256()
        with (path / os.fsdecode(name)).open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        whole.update(digest.hexdigest().encode() + b"  " + name + b"\n")
    return whole.hexdigest()


def _files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()]


def _copy_files(source: Path, copy: Path) -> None:
    for file in _files(source):
        target = copy / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
