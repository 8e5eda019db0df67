"""What model files of TensorFlow become: a function of named tensors.

Files are SavedModel directories, Keras files (`.keras` archives, `.h5` files of whole models), and frozen graphs of
TensorFlow 1 (`model.graphdef`).
"""

import json
import logging
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import keras
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from naiad.backend.signature import ModelSignature, TensorSignature
from naiad.backend.tensorflow.library import tensorflow
from naiad.core.datatype import DataType
from naiad.core.errors import invalid_argument, unsupported
from naiad.core.tensor import Array, Shape

_log = logging.getLogger(__name__)
KERAS_SUFFIXES = (".keras", ".h5", ".hdf5")
_DEFAULT_TAG = "serve"
_DEFAULT_SIGNATURE = "serving_default"

_COMPOSITE = {
    "RaggedTensor": "its to_tensor(), or its values and row_splits as two outputs",
    "SparseTensor": "tf.sparse.to_dense of it, or its indices, values and dense_shape as three outputs",
    "IndexedSlices": "tf.convert_to_tensor of it, or its values and indices as two outputs",
}
"""The kinds of outputs that consist of several tensors, and how a model returns them as plain ones."""

DATATYPES: Mapping[str, DataType] = {
    "string": DataType.BYTES,
    **{datatype.numpy.name: datatype for datatype in DataType if datatype is not DataType.BYTES},
}
"""Name of a tensorflow.DType to datatype."""


@dataclass(frozen=True, slots=True)
class Program:
    """A function that several threads may call, and its tensors."""

    function: Callable[..., Mapping[str, Any]]
    """Takes tensors by name, and returns tensors by name."""
    inputs: Mapping[str, Any]
    """Name to anything with `shape` and `dtype`, as TensorFlow has them."""
    outputs: Mapping[str, Any]
    owner: object
    """Holds the variables of the function."""

    def __post_init__(self) -> None:
        """Raise InferError(UNSUPPORTED) for an output of several tensors, which no request could get."""
        for name, spec in self.outputs.items():
            kind = type(spec).__name__.removesuffix("Spec")
            if kind in _COMPOSITE:
                raise unsupported(
                    f"output '{name}' of the TensorFlow model is a {kind}, which the protocol cannot carry; save a "
                    f"function that returns plain tensors: {_COMPOSITE[kind]}"
                )

    def signature(self) -> ModelSignature:
        """Return the tensors as the configuration is held against them."""
        return ModelSignature("TensorFlow", inputs=_tensors(self.inputs), outputs=_tensors(self.outputs))

    def shapes(self, inputs: Mapping[str, Array]) -> dict[str, Shape]:
        """Execute the function, and return the shapes of its outputs. Raises what TensorFlow raises."""
        found = self.function(**{name: tensorflow.constant(array) for name, array in inputs.items()})
        return {name: tuple(found[name].shape) for name in self.outputs}


def _tensors(specs: Mapping[str, Any]) -> dict[str, TensorSignature]:
    def dims(shape: Any) -> tuple[int | None, ...] | None:
        return None if shape.rank is None else tuple(shape.as_list())

    return {
        name: TensorSignature(name, DATATYPES.get(spec.dtype.name), dims(spec.shape), spec.dtype.name)
        for name, spec in specs.items()
    }


# --- SavedModels ----------------------------------------------------------------------------------------------------


def load_saved_model(path: Path, tags: str, signature: str) -> Program:
    """Return the program of a signature.

    `tags` are separated by commas; without any the graph is the one with the tag `serve`, or the only one. Without
    `signature` the function is `serving_default`, or the first one (as in Triton). Raises InferError(INVALID_ARG) for
    tags and signatures that the model does not have, otherwise what TensorFlow raises.
    """
    loaded = tensorflow.saved_model.load(str(path), tags=_choose_tags(path, tags))
    functions = loaded.signatures
    if not functions:
        raise invalid_argument(
            f"{path} has no signatures; save it with tf.saved_model.save(..., signatures=...), or a Keras model with "
            "its method export"
        )
    name = signature or (_DEFAULT_SIGNATURE if _DEFAULT_SIGNATURE in functions else min(functions))
    if not signature and len(functions) > 1:
        _log.info(
            "%s: the signature '%s' is served; it also has %s: choose with the parameter TF_SIGNATURE_DEF, or "
            "--backend-config=tensorflow,TF_SIGNATURE_DEF=NAME for a bare directory",
            path, name, ", ".join(f"'{each}'" for each in sorted(functions) if each != name),
        )  # fmt: skip
    if name not in functions:
        raise invalid_argument(
            f"{path} has no signature '{name}', which the parameter TF_SIGNATURE_DEF names; its signatures are "
            f"{', '.join(sorted(functions))}"
        )
    function = functions[name]
    return Program(function, function.structured_input_signature[1], function.structured_outputs, loaded)


def _choose_tags(path: Path, tags: str) -> Sequence[str]:
    description = SavedModel()
    description.ParseFromString((path / "saved_model.pb").read_bytes())
    existing = [sorted(graph.meta_info_def.tags) for graph in description.meta_graphs]
    wanted = sorted(filter(None, (tag.strip() for tag in tags.split(",")))) or [_DEFAULT_TAG]
    if wanted in existing:
        return wanted
    if not tags and len(existing) == 1:
        return existing[0]
    if not existing:
        raise invalid_argument(f"{path}: its saved_model.pb has no graph; copy the directory of the SavedModel again")
    shown = " or ".join(",".join(each) for each in existing)
    raise invalid_argument(
        f"{path} has no graph with the tags {','.join(wanted)}; write the parameter TF_GRAPH_TAG with the tags "
        f"{shown}"
    )


# --- Keras files ----------------------------------------------------------------------------------------------------


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


# --- frozen graphs --------------------------------------------------------------------------------------------------


def load_graph_def(path: Path, inputs: Sequence[str], outputs: Sequence[str], init_ops: Path | None) -> Program:
    """Return the program between the configured tensors, which a graph does not name itself.

    `init_ops` is Triton's file `{"init_ops": ["name", ...]}` of operators to run first. Raises
    InferError(INVALID_ARG) for names that the graph does not have, otherwise what TensorFlow raises.
    """
    definition = tensorflow.compat.v1.GraphDef()
    definition.ParseFromString(path.read_bytes())
    wrapped = tensorflow.compat.v1.wrap_function(
        lambda: tensorflow.compat.v1.import_graph_def(definition, name=""), []
    )
    if init_ops is not None:
        for name in json.loads(init_ops.read_text())["init_ops"]:
            wrapped.prune([], wrapped.graph.get_operation_by_name(name))()
    feeds = {name: _find(path, wrapped.graph, name) for name in inputs}
    fetches = {name: _find(path, wrapped.graph, name) for name in outputs}
    function = wrapped.prune(feeds, fetches)
    order = sorted(feeds)

    def call(**tensors: Any) -> Any:
        return function(*(tensors[name] for name in order))

    return Program(call, feeds, fetches, wrapped)


def _find(path: Path, graph: Any, name: str) -> Any:
    try:
        return graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
    except (KeyError, ValueError):
        placeholders = [operation.name for operation in graph.get_operations() if operation.type == "Placeholder"]
        raise invalid_argument(
            f"{path} has no tensor '{name}'; its placeholders are {', '.join(placeholders) or 'none'}, and outputs "
            "are names of operators"
        ) from None
