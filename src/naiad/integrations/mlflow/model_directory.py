"""What of an MLflow directory is served: the directory itself, or the model file of one flavour."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mlflow.models import Model as MlflowModel

from naiad.backend.mlflow.directory import digest_of
from naiad.config.forms.pbtxt.text_format import format_config
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.model import ModelMetadata
from naiad.core.tensor import Array
from naiad.files.digest import file_sha256
from naiad.integrations.mlflow.mlflow_tables import InputsError, tensors_of
from naiad.integrations.mlflow.target import DeploymentSettings
from naiad.repository.stores.new_version import NewVersion
from naiad.tools.publish import PublicationSource, SampleError, TrialSample

FUNCTION = "python_function"
_DESCRIPTIONS = frozenset(
    {
        "MLmodel",
        "conda.yaml",
        "python_env.yaml",
        "requirements.txt",
        "input_example.json",
        "serving_input_example.json",
        "registered_model_meta",
    }
)
"""Files of MLflow's own, which no framework reads."""
_REQUIREMENTS = "requirements.txt"
_Files: TypeAlias = Mapping[str, Path]


_log = logging.getLogger(__name__)


class ExampleSample(TrialSample):
    """The input example that was saved with a model, as a sample request."""

    def tensors(self, metadata: ModelMetadata) -> dict[str, Array]:
        """Return the example as inputs of the model. Raises SampleError."""
        try:
            return tensors_of(metadata, self.inputs)
        except InputsError as error:
            raise SampleError(f"the model's input example does not fit: {error}") from error


class FlavourError(ValueError):
    """The model cannot be deployed as this flavour; the message has the fix."""


@dataclass(frozen=True, slots=True)
class Flavour:
    """A way to serve a model."""

    name: str
    backend: str
    files: Callable[[Path, Mapping[str, Any]], _Files]
    """Files of the version, of the directory and the flavour's description. Raises FlavourError."""


def read_example(directory: Path) -> TrialSample | None:
    """Return the input example of a model; None without one that can be read."""
    try:
        example = MlflowModel.load(str(directory)).load_input_example(str(directory))
    except Exception as error:  # of MLflow, and of the readers of its formats
        _log.warning("the input example of the model is not used: %s", error)
        return None
    return None if example is None else ExampleSample(example)


def deployable(
    directory: Path, name: str, flavour: str | None, settings: DeploymentSettings
) -> tuple[PublicationSource, str]:
    """Return the version that a deployment becomes, and its flavour. Raises FlavourError."""
    try:
        model = MlflowModel.load(str(directory))
    except Exception as error:  # of MLflow, and of its YAML reader
        raise FlavourError(f"{directory} is no model of MLflow: {error}") from error
    chosen = _choose(model, flavour)
    files = chosen.files(directory, dict(model.flavors.get(chosen.name, {})))
    config = ModelConfig(name=name, backend=chosen.backend)
    if settings.max_batch_size is not None:
        config.max_batch_size = settings.max_batch_size
    if chosen.name == "sklearn":
        # What MLflow's own scoring calls; the backend would answer probabilities beside labels.
        method = dict(model.flavors.get(FUNCTION, {})).get("predict_fn", "predict")
        config.parameters["method"].string_value = str(method)
    if settings.instances:
        config.instance_group.add(count=settings.instances)
    if settings.trust:
        config.parameters["sha256"].string_value = _digest(chosen, directory, files)
    if settings.environment:
        if chosen.name != FUNCTION or not (directory / _REQUIREMENTS).exists():
            raise FlavourError(f"environment=true needs flavour {FUNCTION} and {directory / _REQUIREMENTS}")
        # No version number: an update has another one.
        config.parameters["EXECUTION_ENV_PATH"].string_value = f"$$TRITON_MODEL_DIRECTORY/{_REQUIREMENTS}"
    beside = [directory / _REQUIREMENTS] if settings.environment else []
    return PublicationSource(name, NewVersion(files, beside, format_config(config))), chosen.name


def _choose(model: MlflowModel, flavour: str | None) -> Flavour:
    present = [name for name in model.flavors if name in FLAVOURS]
    name = flavour or ("onnx" if "onnx" in present and _has_named_tensors(model) else FUNCTION)
    if name not in FLAVOURS:
        raise FlavourError(f"flavour '{name}' is not served; expected one of {', '.join(FLAVOURS)}")
    if name not in present:
        raise FlavourError(f"the model has no flavour '{name}', only {', '.join(model.flavors) or 'none'}")
    return FLAVOURS[name]


def _has_named_tensors(model: MlflowModel) -> bool:
    """Return whether the model has the tensors of its signature, so that both ways answer the same."""
    schema = model.signature
    if schema is None or schema.inputs is None or schema.outputs is None:
        return False
    return all(part.is_tensor_spec() and part.has_input_names() for part in (schema.inputs, schema.outputs))


def _digest(flavour: Flavour, directory: Path, files: _Files) -> str:
    """Return what the parameter `sha256` of the backend is compared with."""
    if flavour.name == FUNCTION:
        return digest_of(directory)
    (file,) = files.values()
    return file_sha256(file)


def _whole(directory: Path, _: Mapping[str, Any]) -> _Files:
    return {each.name: each for each in directory.iterdir()}


def _onnx(directory: Path, flavour: Mapping[str, Any]) -> _Files:
    """Return the graph, and the files beside it, which may have its weights."""
    graph = _file(directory, flavour, "data")
    beside = {each.name: each for each in directory.iterdir() if each.name not in _DESCRIPTIONS and each != graph}
    return {**beside, "model.onnx": graph}


def _sklearn(directory: Path, flavour: Mapping[str, Any]) -> _Files:
    file = _file(directory, flavour, "pickled_model")
    return {f"model{file.suffix}": file}


def _booster(*classes: str, filename: Mapping[str, str]) -> Callable[[Path, Mapping[str, Any]], _Files]:
    def files(directory: Path, flavour: Mapping[str, Any]) -> _Files:
        kind = str(flavour.get("model_class", classes[0]))
        if kind not in classes:
            raise FlavourError(
                f"the model is a {kind}, whose answers are not what its trees return; deploy it as {FUNCTION}"
            )
        file = _file(directory, flavour, "data")
        if file.suffix not in filename:
            raise FlavourError(f"{file} has no format of trees that is served; deploy it as {FUNCTION}")
        return {filename[file.suffix]: file}

    return files


def _file(directory: Path, flavour: Mapping[str, Any], key: str) -> Path:
    name = str(flavour.get(key, ""))
    file = directory / name
    if not name or file.parent != directory or not file.is_file():
        raise FlavourError(f"{directory / 'MLmodel'}: '{key}' is '{name}', which is no file of the model")
    return file


_XGBOOST = {".ubj": "xgboost.ubj", ".json": "xgboost.json"}
_ALL: Sequence[Flavour] = (
    Flavour(FUNCTION, "mlflow", _whole),
    Flavour("onnx", "onnxruntime", _onnx),
    Flavour("sklearn", "sklearn", _sklearn),
    Flavour("xgboost", "trees", _booster("xgboost.core.Booster", filename=_XGBOOST)),
    Flavour(
        "lightgbm", "trees", _booster("lightgbm.basic.Booster", filename={".lgb": "model.txt", ".txt": "model.txt"})
    ),
)
FLAVOURS: Mapping[str, Flavour] = {each.name: each for each in _ALL}
"""By MLflow's name."""
