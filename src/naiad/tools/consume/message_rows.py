"""Messages as rows of a model, and results as messages.

A message is one row. Its field `data` has an object in JSON, as a line of a .jsonl file; without `data` each field is
a column: text for inputs of strings, JSON for other inputs, and raw little-endian values in a field `INPUT.raw`.
An answer has the id of its message in `id`, and the keys and outputs as an object in `data`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from naiad.core.datatype import DataType
from naiad.core.errors import InferError, excerpt
from naiad.tools.consume.queues.message_queue import KEY, QueueMessage
from naiad.tools.predict.job_signature import RowSignature
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.rows.chunk import Chunk
from naiad.tools.predict.rows.row_outputs import to_block
from naiad.tools.predict.rows.row_tensors import to_chunk
from naiad.tools.predict.sinks.sink import is_single
from naiad.tools.predict.sinks.texts import json_rows, key_text, key_texts
from naiad.tools.predict.sources.record_columns import RecordColumns, parse_record
from naiad.tools.values.json_values import decoded, kind_of, parse_text
from naiad.tools.values.tensor import InputError

_DATA = "data"
_RAW = ".raw"

Fields = Mapping[bytes, bytes]


class MessageRows:
    """Reads the messages of one model, and writes its answers."""

    def __init__(self, job: PredictJob, signature: RowSignature) -> None:
        self._signature = signature
        self._records = RecordColumns(job, signature)
        self._keys = list(job.keys)
        self._columns = {name: job.columns.get(name, name) for name in {*job.columns, *signature.inputs}}
        names = [*self._keys, *signature.outputs]
        members = b",".join(orjson.dumps(name).replace(b"%", b"%%") + b":%b" for name in names)
        self._text = b"{" + members + b"}"

    def chunk(self, messages: Sequence[QueueMessage]) -> Chunk:
        """Return messages as tensors, in order; one that has no row is a failure with its reason."""
        rows: list[Mapping[str, Any]] = []
        failures: dict[int, str] = {}
        for offset, message in enumerate(messages):
            try:
                row = self._row(message.fields)
                for key in self._keys:
                    key_text(row.get(key))
                rows.append(row)
            except Exception as error:  # of any kind: it would end each consumer that gets the message
                failures[offset] = _reason(error)
                rows.append({})
        return to_chunk(self._records.rows("", 0, rows, failures), self._signature.inputs, self._signature.pictures)

    def answers(self, messages: Sequence[QueueMessage], chunk: Chunk) -> list[Fields]:
        """Return the answers of a chunk whose requests have ended, without failures."""
        signature = self._signature
        block = to_block(chunk, 0, list(signature.outputs))
        columns = [key_texts(chunk.keys[key]) for key in self._keys]
        for name, tensor in signature.outputs.items():
            columns.append(json_rows(block.columns[name], chunk.count, is_single=is_single(tensor)))
        return [
            {
                **({KEY: message.fields[KEY]} if KEY in message.fields else {}),
                b"id": message.id.encode(),
                _DATA.encode(): self._text % tuple([column[offset] for column in columns]),
            }
            for offset, message in enumerate(messages)
            if offset not in chunk.failures
        ]

    def _row(self, fields: Fields) -> Mapping[str, Any]:
        data = fields.get(_DATA.encode())
        if data is not None and _DATA not in self._columns:
            row: dict[str, Any] = parse_record(data, f"field '{_DATA}'")
        else:
            row = self._read(fields)
        pictures = self._signature.pictures
        if pictures is not None:
            for column in self._columns_of(pictures.name):
                if column in row:
                    row[column] = _picture(row[column], f"input '{pictures.name}'")
        return self._records.row(row, "the message")

    def _columns_of(self, name: str) -> Iterable[str]:
        return [column for column, target in self._columns.items() if target == name]

    def _read(self, fields: Fields) -> dict[str, Any]:
        """Return the columns of a message without `data`."""
        row: dict[str, Any] = {}
        for field, value in fields.items():
            name = field.decode("utf-8", "replace")
            column = name.removesuffix(_RAW)
            if name not in self._columns and column != name and column in self._columns:
                row[column] = value
            else:
                row[name] = self._value(name, value)
        return row

    def _value(self, name: str, value: bytes) -> Any:
        target = self._columns.get(name, "")
        tensor, features = self._signature.inputs.get(target), self._signature.features
        pictures = self._signature.pictures
        if tensor is not None:
            is_text = tensor.datatype is DataType.BYTES or (pictures is not None and pictures.name == target)
            return value if is_text else parse_text(value, f"field '{excerpt(name)}'")
        if name not in features.names or any(isinstance(each, str) for each in features.categories.get(name, ())):
            return value.decode("utf-8", "replace")
        try:
            return parse_text(value, "")
        except InputError:
            return value.decode("utf-8", "replace")


def dead_letter(message: QueueMessage, reason: str, *, with_fields: bool = True) -> Fields:
    """Return a message with the reason why it has no answer; its own fields stay as they are."""
    return {
        **(message.fields if with_fields else {}),
        b"naiad-id": message.id.encode(),
        b"naiad-reason": excerpt(reason).encode("utf-8", "replace"),
        b"naiad-deliveries": b"%d" % message.deliveries,
    }


def _reason(error: Exception) -> str:
    if isinstance(error, InferError):
        return error.message
    return str(error) if isinstance(error, InputError) else f"it cannot be read: {type(error).__name__}: {error}"


def _picture(value: Any, where: str) -> Any:
    """Return the content of a picture: a message must not name a file of this machine. Raises InputError."""
    if isinstance(value, bytes | list):
        return value
    if isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str):
        return decoded(value["b64"], where)
    raise InputError(f'{where}: expected the content of a picture, {{"b64": "..."}}, got {kind_of(value)}')
