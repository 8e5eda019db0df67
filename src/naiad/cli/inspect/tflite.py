"""TFLite files: flatbuffers, read without a schema; field numbers come from schema.fbs."""

import math
import struct
from collections.abc import Sequence
from pathlib import Path

from naiad.cli.inspect.file_report import Inspection, TensorRow

_TYPES = (
    "FP32", "FP16", "INT32", "UINT8", "INT64", "BYTES", "BOOL", "INT16", "complex64", "INT8", "FP64", "complex128",
    "UINT64", "resource", "variant", "UINT32", "UINT16", "int4", "BF16",
)  # fmt: skip
_OPERATORS = """\
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION
LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH
CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER
BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE
BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM
ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE TILE
EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR
ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE
RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND
COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE
NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL
PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS HASHTABLE
HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE
BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1
UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR
RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE
STABLEHLO_CLAMP STABLEHLO_CONCATENATE STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE
STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE STABLEHLO_ABS STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL
STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_MINIMUM STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER
STABLEHLO_RSQRT STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE
STABLEHLO_CONVERT STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA
STABLEHLO_DOT_GENERAL STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER STABLEHLO_TRANSPOSE
DILATE STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT
STABLEHLO_CASE
""".split()  # noqa: SIM905 - a list of 200 lines otherwise
_CUSTOM = 32


class Table:
    """A table of a flatbuffer."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position
        self._fields = position - self._integer(position, "i")

    def _integer(self, position: int, kind: str) -> int:
        return int(struct.unpack_from(f"<{kind}", self._data, position)[0])

    def _place(self, number: int) -> int:
        """Return the position of a field, 0 if it is not there."""
        entry = 4 + 2 * number
        if entry >= self._integer(self._fields, "H"):
            return 0
        offset = self._integer(self._fields + entry, "H")
        return self._position + offset if offset else 0

    def number(self, field: int, kind: str, default: int = 0) -> int:
        """Return an integer of a `struct` format."""
        place = self._place(field)
        return self._integer(place, kind) if place else default

    def _vector(self, field: int) -> tuple[int, int]:
        """Return position and length of a vector."""
        place = self._place(field)
        if not place:
            return 0, 0
        place += self._integer(place, "I")
        return place + 4, self._integer(place, "I")

    def text(self, field: int) -> str:
        """Return a string."""
        start, count = self._vector(field)
        return self._data[start : start + count].decode(errors="replace")

    def numbers(self, field: int) -> list[int]:
        """Return a vector of int32."""
        start, count = self._vector(field)
        return list(struct.unpack_from(f"<{count}i", self._data, start))

    def tables(self, field: int) -> "list[Table]":
        """Return a vector of tables."""
        start, count = self._vector(field)
        if start + 4 * count > len(self._data):
            raise ValueError("the file is cut off")
        places = range(start, start + 4 * count, 4)
        return [Table(self._data, place + self._integer(place, "I")) for place in places]

    def size_of(self, field: int) -> int:
        """Return the length of a vector."""
        return self._vector(field)[1]


def read_tflite(path: Path, found: Inspection) -> None:
    """Read a TFLite model. Raises OSError, ValueError."""
    data = path.read_bytes()
    try:
        _read(Table(data, struct.unpack_from("<I", data)[0]), found)
    except struct.error as error:
        raise ValueError(f"the file is cut off or damaged: {error}") from error


def _read(model: Table, found: Inspection) -> None:
    found.details["schema"] = f"version {model.number(0, 'I')}"
    found.producer = model.text(3)
    names = [_operator_name(code) for code in model.tables(1)]
    buffers = model.tables(4)
    for graph in model.tables(2)[:1]:
        tensors = graph.tables(0)
        found.inputs = [_tensor(tensors[index]) for index in graph.numbers(1)]
        found.outputs = [_tensor(tensors[index]) for index in graph.numbers(2)]
        found.operators.update(names[operator.number(0, "I")] for operator in graph.tables(3))
        constant = [tensor for tensor in tensors if buffers[tensor.number(2, "I")].size_of(0)]
        found.parameter_count = sum(math.prod(tensor.numbers(0)) for tensor in constant)
    custom = sorted(name for name in found.operators if name.startswith("custom "))
    if custom:
        found.problems.append(f"custom operators, which LiteRT does not have: {', '.join(custom)}")


def _operator_name(code: Table) -> str:
    number = max(code.number(0, "b"), code.number(3, "i"))
    if number == _CUSTOM:
        return f"custom {code.text(1)}"
    return _OPERATORS[number] if number < len(_OPERATORS) else f"operator {number}"


def _tensor(tensor: Table) -> TensorRow:
    number = tensor.number(1, "b")
    shape: Sequence[int] = tensor.numbers(7) or tensor.numbers(0)
    return TensorRow(tensor.text(3), _TYPES[number] if number < len(_TYPES) else f"type {number}", shape)
