"""Models in ZIP archives: PyTorch, Keras, skops."""

import json
import math
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from naiad.backend.pytorch.formats import PyTorchFormat, detect_format
from naiad.cli.inspect.file_report import Inspection, TensorRow
from naiad.core.errors import InferError

_TORCH_TYPES = (
    "", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "complex32", "complex64", "complex128",
    "BOOL", "BF16",
)  # fmt: skip
"""torch._export.serde.schema.ScalarType."""
_MAX_TEXT_BYTES = 256 << 20
_CALL = re.compile(rb"torch\.(\w+)\(")


def read_torch(path: Path, found: Inspection) -> None:
    """Read an archive of PyTorch. Raises OSError, ValueError."""
    try:
        kind = detect_format(path)
    except InferError as error:
        raise ValueError(error.message) from error
    found.details["contents"] = kind.value
    if kind is PyTorchFormat.CHECKPOINT:
        found.problems.append("it has weights without a graph; export the model with torch.export.save")
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        files = {name.partition("/")[2]: name for name in archive.namelist()}
        if kind is PyTorchFormat.EXPORTED:
            model = next(name for inner, name in files.items() if re.fullmatch(r"models/[^/]+\.json|serial.*", inner))
            _read_exported(json.loads(_read(archive, model)), found)
        elif kind is PyTorchFormat.TORCHSCRIPT:
            found.details["archive"] = f"version {_read(archive, files['version']).decode().strip()}"
            for inner, name in files.items():
                if inner.startswith("code/") and inner.endswith(".py"):
                    found.operators.update(call.decode() for call in _CALL.findall(_read(archive, name)))
            found.unread.append("datatypes and shapes: TorchScript has none; write them in config.pbtxt")
        elif kind is PyTorchFormat.AOT_INDUCTOR:
            found.unread.append("operators: the package has compiled code, which is not loaded here")


def _read_exported(program: Mapping[str, Any], found: Inspection) -> None:
    graph = program["graph_module"]["graph"]
    signature = program["graph_module"]["signature"]
    values = graph["tensor_values"]
    found.producer = f"PyTorch {program.get('torch_version', '')}".rstrip()
    found.operators.update(str(node["target"]).removeprefix("torch.ops.") for node in graph["nodes"])
    parameters = [
        values[spec["parameter"]["arg"]["name"]] for spec in signature["input_specs"] if "parameter" in spec
    ]
    found.parameter_count = sum(math.prod(size.get("as_int", 1) for size in value["sizes"]) for value in parameters)
    found.inputs = [
        _torch_tensor(spec["user_input"]["arg"], values) for spec in signature["input_specs"] if "user_input" in spec
    ]
    found.outputs = [
        _torch_tensor(spec["user_output"]["arg"], values)
        for spec in signature["output_specs"]
        if "user_output" in spec
    ]


def _torch_tensor(argument: Mapping[str, Any], values: Mapping[str, Any]) -> TensorRow:
    if "as_tensor" not in argument:
        return TensorRow("a constant", next(iter(argument)), None)
    name = argument["as_tensor"]["name"]
    number = values[name]["dtype"]
    shape = [size.get("as_int", -1) for size in values[name]["sizes"]]
    return TensorRow(name, _TORCH_TYPES[number] if number < len(_TORCH_TYPES) else f"type {number}", shape)


def read_keras(path: Path, found: Inspection) -> None:
    """Read a .keras file; of HDF5 only that it is one. Raises OSError, ValueError."""
    if not zipfile.is_zipfile(path):
        found.unread.append("layers: the file is HDF5, which TensorFlow reads")
        return
    with zipfile.ZipFile(path) as archive:
        metadata = json.loads(_read(archive, "metadata.json"))
        config = json.loads(_read(archive, "config.json"))
    found.producer = f"Keras {metadata.get('keras_version', '')}"
    found.details["class"] = str(config.get("class_name", ""))
    layers = config.get("config", {}).get("layers", [])
    found.operators.update(str(layer["class_name"]) for layer in layers)
    foreign = sorted({str(layer["registered_name"]) for layer in layers if layer.get("registered_name")})
    if foreign:
        found.problems.append(f"layers of other code, which the server does not have: {', '.join(foreign)}")


def read_skops(path: Path, found: Inspection) -> None:
    """Read the schema of a skops file. Raises OSError, ValueError."""
    with zipfile.ZipFile(path) as archive:
        schema = json.loads(_read(archive, "schema.json"))
    found.producer = f"skops {schema.get('_skops_version', '')}"
    found.details["class"] = f"{schema.get('__module__', '')}.{schema.get('__class__', '')}"
    pending = [schema]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            if node.get("__loader__") == "ObjectNode":
                found.operators[str(node["__class__"])] += 1
            pending += node.values()
        elif isinstance(node, list):
            pending += node


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a member. Raises ValueError for one that is not there or too large."""
    try:
        if archive.getinfo(name).file_size > _MAX_TEXT_BYTES:
            raise ValueError(f"{name} in the archive is too large to be read")
        return archive.read(name)
    except KeyError:
        raise ValueError(f"the archive has no {name}") from None
