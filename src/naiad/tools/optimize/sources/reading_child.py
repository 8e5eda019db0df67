"""The process that reads a model file: `python -m naiad.tools.optimize.sources.reading_child FOLDER`."""

import contextlib
import json
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from naiad.backend.api import Backend, ModelContext
from naiad.backend.registry import BackendRegistry
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import BY_CONFIG_NUMBER, DataType
from naiad.core.errors import InferError
from naiad.core.tensor import Array, TensorSpec
from naiad.files.json_records import read_record, to_json
from naiad.tools.optimize.converters.conversion_child import end_with_parent
from naiad.tools.optimize.optimize_source import BACKENDS, Format
from naiad.tools.optimize.samples.chunks import ChunkedSamples
from naiad.tools.optimize.sources.observation import Call, run_examples
from naiad.tools.optimize.sources.tensor_reader import Reading, Tensors

_WITHOUT_TENSORS = (Format.TORCH, Format.TORCHSCRIPT, Format.AOT_INDUCTOR)
"""Formats whose files have no datatypes and shapes."""
_TREES = (Format.XGBOOST, Format.LIGHTGBM, Format.TREELITE)


def main(folder: Path) -> int:
    """Read, and write the tensors or the `reason` of a failure to result.json."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    reading = read_record(Reading, json.loads((folder / "reading.json").read_text(encoding="utf-8")))
    result: Tensors | dict[str, str]
    try:
        result = read(reading, list(ChunkedSamples(folder / "examples")))
    except (InferError, ValueError) as error:
        result = {"reason": error.message if isinstance(error, InferError) else str(error)}
    except Exception as error:  # frameworks raise all kinds of exceptions
        traceback.print_exc()
        result = {"reason": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
    (folder / "result.json").write_text(to_json(result), encoding="utf-8")
    return 0


def read(reading: Reading, examples: Sequence[Mapping[str, Array]]) -> Tensors:
    """Return the tensors of a model file. Raises InferError, ValueError, and exceptions of the frameworks."""
    return _run(reading, examples) if reading.format in _WITHOUT_TENSORS else _ask_backend(reading)


def _context(reading: Reading) -> ModelContext:
    path, backend = reading.path, BACKENDS[reading.format]
    config = ModelConfig(name=path.stem, backend=backend, default_model_filename=path.name)
    settings = {"allow-pickle": "true"} if reading.allow_pickle else {}
    return ModelContext(path.stem, 1, config, path.parent, path.parent, usable_cores=1, backend_config=settings)


# --- files that describe their tensors ----------------------------------------------------------------------------


def _ask_backend(reading: Reading) -> Tensors:
    """Return the tensors as the backend completes a configuration; `reading` has the last word on dimensions."""
    context = _context(reading)
    backend = BackendRegistry().get(context.config.backend)
    config = _completed(backend, context, reading)
    rows = (-1,) if config.max_batch_size else ()
    inputs, outputs = _specs(config.input, rows), _specs(config.output, rows)
    single = all(spec.shape[:1] == (1,) for spec in inputs + outputs)
    if reading.are_observed:
        has_rows = bool(rows) or (single and _lack_one_axis(reading.inputs, inputs))
    else:
        inputs, has_rows = overlaid("input", inputs, reading.inputs), bool(rows)
    has_batch = has_rows if reading.has_batch is None else reading.has_batch
    if has_batch and not rows and not single:
        raise ValueError(
            "the first dimension of its tensors is fixed, so it has no batch dimension; leave it out (has_batch), or "
            "export the model with a free first dimension"
        )
    return Tensors(inputs, overlaid("output", outputs, reading.outputs), has_batch)


def _completed(backend: Backend, context: ModelContext, reading: Reading) -> ModelConfig:
    """Return the configuration with what the file says, and what the user says where the file does not."""
    _write_choices(context.config, reading)
    # Probabilities, from which classes follow: conversions of classifiers have them, too.
    if reading.format is Format.SKLEARN and not reading.outputs:
        config = ModelConfig()
        config.CopyFrom(context.config)
        config.parameters["method"].string_value = "predict_proba"
        with contextlib.suppress(InferError):
            return backend.auto_complete(replace(context, config=config))
    try:
        return backend.auto_complete(context)
    except InferError:
        if reading.are_observed or not reading.inputs + reading.outputs:
            raise
    _write_tensors(context.config, reading)
    return backend.auto_complete(context)


def _write_choices(config: ModelConfig, reading: Reading) -> None:
    """Write what these models leave open: names and datatypes of an estimator, FP64 for trees."""
    named = [spec for spec in reading.inputs if not spec.name.startswith("#")]
    if reading.format in _TREES and any(spec.datatype is DataType.FP64 for spec in reading.inputs):
        config.input.add(name="input__0", data_type=DataType.FP64.config_number)
    if reading.format is Format.SKLEARN:
        unnamed = [replace(spec, name="input__0") for spec in reading.inputs if spec.name == "#0"]
        for spec in named or unnamed:
            config.input.add(name=spec.name, data_type=spec.datatype.config_number)
        if reading.outputs:
            config.parameters["method"].string_value = ",".join(spec.name for spec in reading.outputs)


def _write_tensors(config: ModelConfig, reading: Reading) -> None:
    specs = reading.inputs + reading.outputs
    has_batch = reading.has_batch
    if has_batch is None:
        has_batch = all(spec.shape[:1] == (-1,) for spec in specs)
    config.max_batch_size = int(has_batch)
    for field, known in ((config.input, reading.inputs), (config.output, reading.outputs)):
        del field[:]
        for spec in known:
            dims = spec.shape[1:] if has_batch else spec.shape
            field.add(name=spec.name, data_type=spec.datatype.config_number, dims=dims or (1,))


def _specs(tensors: Iterable[Any], rows: tuple[int, ...]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            each.name,
            BY_CONFIG_NUMBER[each.data_type],
            (*rows, *(each.reshape.shape if each.HasField("reshape") else each.dims)),
        )
        for each in tensors
    )


def _lack_one_axis(observed: Sequence[TensorSpec], inputs: Sequence[TensorSpec]) -> bool:
    axes = {spec.name: len(spec.shape) for spec in inputs}
    return all(len(spec.shape) + 1 == axes.get(spec.name, len(inputs[0].shape)) for spec in observed)


def overlaid(kind: str, found: tuple[TensorSpec, ...], given: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Return tensors with the dimensions that the user gives. Raises ValueError for those that do not fit."""
    known = {spec.name: spec for spec in found}
    for spec in given:
        own = known.get(spec.name)
        if own is None:
            raise ValueError(f"{kind} '{spec.name}' is not in the model, which has {', '.join(known)}")
        fits = len(own.shape) == len(spec.shape) and all(
            -1 in (size, wanted) or size == wanted for size, wanted in zip(own.shape, spec.shape, strict=True)
        )
        if own.datatype is not spec.datatype or not fits:
            raise ValueError(
                f"{kind} '{spec.name}' is {own.datatype.value} {list(own.shape)} in the model, but "
                f"{spec.datatype.value} {list(spec.shape)} is given; leave it out to take the model's"
            )
        known[spec.name] = spec
    return tuple(known.values())


# --- files of PyTorch that have to be run -------------------------------------------------------------------------


def _run(reading: Reading, examples: Sequence[Mapping[str, Array]]) -> Tensors:
    """Return the tensors that samples and a run show."""
    from naiad.backend.pytorch.backend import find_model, open_program
    from naiad.backend.pytorch.model_parameters import read_options
    from naiad.tools.optimize.sources.torch_call import argument_names, program_call

    context = _context(reading)
    program = open_program(context, *find_model(context), "cpu", read_options(context))
    if not examples and not (reading.inputs and reading.outputs):
        names = ", ".join(argument_names(program)) or "a dictionary of tensors"
        raise ValueError(
            f"the file has no datatypes and shapes of its inputs ({names}); give samples, from which they are taken, "
            "or all inputs and outputs as NAME:DATATYPE:SHAPE"
        )
    inputs = _in_order(reading.inputs, argument_names(program))
    renamed = {old.name: new.name for old, new in zip(reading.inputs, inputs, strict=True)}
    order = [spec.name for spec in _sorted(inputs, argument_names(program))]
    if not examples:
        has_batch = reading.has_batch
        return Tensors(_ordered(inputs, order), reading.outputs, has_batch is not False)
    call: Call = program_call(program, order)
    named = [{renamed.get(name, name): array for name, array in sample.items()} for sample in examples]
    runs = run_examples(call, named, reading.has_batch)
    if reading.are_observed and runs.rows is not None:
        inputs = tuple(replace(spec, shape=(runs.rows, *spec.shape)) for spec in inputs)
    outputs = overlaid("output", runs.specs, reading.outputs)
    return Tensors(_ordered(inputs, order), outputs, runs.rows is not None)


def _in_order(inputs: tuple[TensorSpec, ...], arguments: Sequence[str]) -> tuple[TensorSpec, ...]:
    """Return inputs with the names of the arguments for those that are only numbered, `#0`."""
    named = []
    for spec in inputs:
        place = int(spec.name[1:]) if spec.name.startswith("#") else -1
        if place >= len(arguments):
            raise ValueError(f"the samples have {place + 1} inputs, the model takes {len(arguments)}")
        named.append(replace(spec, name=arguments[place]) if place >= 0 else spec)
    return tuple(named)


def _sorted(inputs: tuple[TensorSpec, ...], arguments: Sequence[str]) -> list[TensorSpec]:
    """Return inputs in the order of the arguments if they have their names, else as they are."""
    if all(spec.name in arguments for spec in inputs):
        return sorted(inputs, key=lambda spec: list(arguments).index(spec.name))
    return list(inputs)


def _ordered(inputs: tuple[TensorSpec, ...], order: Sequence[str]) -> tuple[TensorSpec, ...]:
    return tuple(sorted(inputs, key=lambda spec: order.index(spec.name)))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
