"""What `config.pbtxt` has to say of a source or candidate, because its file does not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.tensor import TensorSpec
from naiad.files.digest import file_sha256
from naiad.tools.optimize.candidate import Conversion
from naiad.tools.optimize.converters.conversions import model_file
from naiad.tools.optimize.optimize_source import Format, Source

FOREST_INPUT = "input__0"
"""The only input of a forest, by the name that its backend gives it."""
MAX_BATCH_SIZE = 8
"""`max_batch_size` of models whose files do not limit their rows."""
_WITHOUT_TENSORS = (Format.TORCH, Format.TORCHSCRIPT, Format.AOT_INDUCTOR, Format.SKLEARN)
_TREES = (Format.XGBOOST, Format.LIGHTGBM, Format.TREELITE)
"""Their input is FP32 or, if the configuration says so, FP64."""


def declare(config: ModelConfig, conversion: Conversion, source: Source) -> None:
    """Add tensors and parameters that the conversion's backend needs.

    Files of PyTorch and estimators of scikit-learn get the tensors of the source, in its order, forests an input of
    FP64, and the pickle of an estimator the digest that allows this file alone.
    """
    made = conversion.candidate.format
    if source.operator_library:
        config.model_operations.op_library_filename.append(source.operator_library)
    has_rows = config.max_batch_size > 0
    if made in _TREES:
        doubles = [spec for spec in source.inputs if spec.datatype is DataType.FP64]
        _add(config.input, [replace(spec, name=FOREST_INPUT) for spec in doubles], has_rows)
    if made not in _WITHOUT_TENSORS:
        return
    _add(config.input, source.inputs, has_rows)
    _add(config.output, source.outputs, has_rows)
    if made is Format.SKLEARN and (file := model_file(conversion.folder)).suffix != ".skops":
        config.parameters["sha256"].string_value = file_sha256(file)


def declaration(conversion: Conversion, source: Source) -> str:
    """Return lines for `config.pbtxt` with batching, as `declare` adds them; "" for a file that says all itself."""
    config = ModelConfig()
    declare(config, conversion, source)
    has_rows = source.has_batch and all(spec.shape[:1] == (-1,) for spec in source.inputs + source.outputs)
    if not config.input or not has_rows:
        return str(config)
    batching = ModelConfig(max_batch_size=MAX_BATCH_SIZE)
    declare(batching, conversion, source)
    return str(batching)


def _add(field: Any, specs: Sequence[TensorSpec], has_rows: bool) -> None:
    for spec in specs:
        dims = spec.shape[1:] if has_rows else spec.shape
        tensor = field.add(name=spec.name, data_type=spec.datatype.config_number, dims=dims or (1,))
        if not dims:
            tensor.reshape.SetInParent()  # Triton: 'dims' must not be empty.
