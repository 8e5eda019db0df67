"""A TypeScript module with a client of one model, on `fetch` and without dependencies."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from naiad.cli.client_code.model_interface import ModelInterface, Naming, NoClientError, TensorField
from naiad.core.datatype import DataType
from naiad.core.errors import excerpt

NAMING = Naming(reserved=frozenset(("__proto__", "constructor", "prototype")))
"""Words of the language are allowed as names of properties."""

_TEMPLATE = Path(__file__).parent / "client.ts.template"
_PLACEHOLDER = re.compile(r"@[A-Z_]+@")
_ARRAYS = {
    DataType.BOOL: "boolean[]",
    DataType.BYTES: "string[]",
    DataType.UINT8: "Uint8Array",
    DataType.UINT16: "Uint16Array",
    DataType.UINT32: "Uint32Array",
    DataType.UINT64: "BigUint64Array",
    DataType.INT8: "Int8Array",
    DataType.INT16: "Int16Array",
    DataType.INT32: "Int32Array",
    DataType.INT64: "BigInt64Array",
    DataType.FP16: "Uint16Array",
    DataType.BF16: "Uint16Array",
    DataType.FP32: "Float32Array",
    DataType.FP64: "Float64Array",
}
_WIDE = (DataType.INT64, DataType.UINT64)


def typescript_client(interface: ModelInterface) -> str:
    """Return the module. Raises NoClientError for a decoupled model, whose responses need a stream."""
    if interface.is_decoupled:
        raise NoClientError(
            f"model '{excerpt(interface.name)}' is decoupled: it sends any number of responses, which a TypeScript "
            "client does not read; use --language python, or generate_stream"
        )
    values = {
        "@TITLE@": _in_comment(excerpt(interface.name)),
        "@MODEL@": json.dumps(interface.name),
        "@INPUTS@": "\n".join(_property(field, is_input=True) for field in interface.inputs),
        "@OUTPUTS@": "\n".join(_property(field, is_input=False) for field in interface.outputs),
        "@INPUT_SPECS@": _specs(interface.inputs),
        "@OUTPUT_SPECS@": _specs(interface.outputs),
    }
    text = _TEMPLATE.read_text(encoding="utf-8")
    # In one pass: names of tensors may look like placeholders.
    return _PLACEHOLDER.sub(lambda found: values[found[0]], text)


def _property(field: TensorField, *, is_input: bool) -> str:
    array = _ARRAYS[field.datatype]
    kind = f"Input<{_accepted(field.datatype, array)}>" if is_input else f"Tensor<{array}>"
    mark = "?" if field.is_optional else ""
    bits = "; the bits of each number" if field.datatype in (DataType.FP16, DataType.BF16) else ""
    return f"  /** {_in_comment(field.description)}{bits}. */\n  {field.identifier}{mark}: {kind};"


def _accepted(datatype: DataType, array: str) -> str:
    """Return what an input takes: plain arrays also where the values are numbers."""
    if array.endswith("[]"):
        return f"readonly {array}"
    return f"{array} | readonly {'bigint' if datatype in _WIDE else 'number'}[]"


def _specs(fields: Sequence[TensorField]) -> str:
    rows = []
    for field in fields:
        shape = ", ".join(map(str, field.shape))
        rows.append(
            f"  {{ key: {json.dumps(field.identifier)}, name: {json.dumps(field.name)}, "
            f'datatype: "{field.datatype.value}", shape: [{shape}] }},'
        )
    return "\n".join(rows)


def _in_comment(text: str) -> str:
    return text.replace("*/", "* /")
