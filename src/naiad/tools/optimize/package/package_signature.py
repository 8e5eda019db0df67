"""Names, datatypes and shapes of a model's tensors, as clients see them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from naiad.config.model_config_pb2 import DataType, ModelConfig
from naiad.tools.optimize.correctness.runners.isolated import IsolatedRunner
from naiad.tools.optimize.correctness.runners.model_runner import RunnerError

Signature: TypeAlias = Mapping[str, Mapping[str, tuple[str, tuple[int, ...]]]]
"""`inputs` and `outputs`: datatype and shape by name, with -1 for the batch dimension."""


class ExportError(ValueError):
    """The package does not fit to what is there; the message has a fix."""


def read_signature(file: Path) -> Signature:
    """Return the signature in the evidence of a package."""
    values = json.loads(file.read_text(encoding="utf-8"))
    return {
        kind: {each["name"]: (each["datatype"], tuple(each["shape"])) for each in values[kind]}
        for kind in ("inputs", "outputs")
    }


def signature_of(config: ModelConfig) -> Signature | None:
    """Return what a configuration says; None if it leaves inputs or outputs to the model file."""
    if not config.input or not config.output:
        return None
    batch = (-1,) if config.max_batch_size else ()

    return {
        "inputs": {each.name: (_datatype(each.data_type), (*batch, *each.dims)) for each in config.input},
        "outputs": {each.name: (_datatype(each.data_type), (*batch, *each.dims)) for each in config.output},
    }


def loaded_signature(repository: Path, model: str) -> Signature:
    """Return the tensors of a model whose configuration has none, by loading it. Raises ExportError."""
    try:
        runner = IsolatedRunner(repository, model)
    except RunnerError as error:
        raise ExportError(
            f"{repository / model} does not load, so its inputs and outputs are not known: {error}; repair it, or "
            "export with another --name"
        ) from error
    runner.close()
    return {
        "inputs": {each.name: (each.datatype.value, tuple(each.shape)) for each in runner.inputs},
        "outputs": {each.name: (each.datatype.value, tuple(each.shape)) for each in runner.outputs},
    }


def add_tensors(config: ModelConfig, signature: Signature) -> None:
    """Name the tensors in a configuration without any, so that the next export can compare them."""
    skipped = 1 if config.max_batch_size else 0
    tensors = [*signature["inputs"].values(), *signature["outputs"].values()]
    if config.input or config.output or any(len(shape) <= skipped for _, shape in tensors):
        return
    for kind, field in (("inputs", config.input), ("outputs", config.output)):
        for name, (datatype, shape) in signature[kind].items():
            field.add(
                name=name, data_type=f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}", dims=shape[skipped:]
            )


def _datatype(number: DataType) -> str:
    name = DataType.Name(number).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def tensor_text(tensor: tuple[str, tuple[int, ...]] | None) -> str:
    """Return a tensor for messages."""
    return f"{tensor[0]} {list(tensor[1])}" if tensor else "missing"
