"""Keras files: `.keras` archives and `.h5` files of whole models."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import keras

from naiad.backend.tensorflow.library import tensorflow
from naiad.backend.tensorflow.program import Program
from naiad.core.errors import invalid_argument

SUFFIXES = (".keras", ".h5", ".hdf5")


def load_keras(path: Path) -> Program:
    """Return the program of a Keras model, with the names of its method `export`: inputs by name, `output_0`, ...

    Outputs in a dictionary keep their keys. Raises InferError(INVALID_ARG) for files of another major version of
    Keras and for models without defined inputs, otherwise what Keras raises. Code in files is not executed.
    """
    _check_version(path)
    model = keras.saving.load_model(path, compile=False, safe_mode=True)
    if not model.inputs:
        raise invalid_argument(f"{path}: the model does not define its inputs; export it as a SavedModel instead")
    specs = {each.name: tensorflow.TensorSpec(each.shape, each.dtype, each.name) for each in model.inputs}
    has_named_inputs = len(specs) > 1 and isinstance(model.input, dict)

    def call(**tensors: Any) -> Mapping[str, Any]:
        flat = [tensors[name] for name in specs]
        arguments = tensors if has_named_inputs else flat[0] if len(flat) == 1 else flat
        result = model(arguments, training=False)
        if isinstance(result, dict):
            return dict(result)
        results = result if isinstance(result, (list, tuple)) else [result]
        return {f"output_{index}": tensor for index, tensor in enumerate(results)}

    function = tensorflow.function(call, autograph=False).get_concrete_function(**specs)
    return Program(function, specs, function.structured_outputs, model)


def _check_version(path: Path) -> None:
    saved = _saved_version(path)
    if saved.split(".")[0] != keras.__version__.split(".")[0]:
        raise invalid_argument(
            f"{path} was saved by Keras {saved}, which Keras {keras.__version__} here may read wrongly; load it with "
            f"Keras {saved.split('.')[0]}, and export it as a SavedModel (model.export), which every version serves"
        )


def _saved_version(path: Path) -> str:
    if path.suffix != ".keras":
        with h5py.File(path, "r") as file:
            if "model_config" not in file.attrs:
                raise invalid_argument(f"{path} has weights without a model; save the whole model with model.save")
            # The oldest files do not name their version.
            version = file.attrs.get("keras_version", b"1")
            return version.decode() if isinstance(version, bytes) else str(version)
    with zipfile.ZipFile(path) as archive:
        return str(json.loads(archive.read("metadata.json"))["keras_version"])
