"""Messages as rows, results as answers."""

import json
import struct

import numpy as np
import pytest

from naiad.config.tensors.features import Features
from naiad.core.datatype import DataType
from naiad.tools.consume.message_rows import MessageRows, dead_letter
from naiad.tools.consume.queues.message_queue import QueueMessage
from naiad.tools.predict.job_signature import RowSignature
from naiad.tools.predict.prediction_job import PredictJob
from naiad.tools.predict.rows.chunk import ChunkResult
from naiad.tools.values.tensor import ModelTensor

VECTOR = ModelTensor("X", DataType.FP32, (2,), is_batched=True)
TEXT = ModelTensor("TEXT", DataType.BYTES, (1,), is_batched=True)
NO_FEATURES = Features()
OUT = ModelTensor("Y", DataType.FP32, (1,), is_batched=True)


def rows(*inputs: ModelTensor, features: Features = NO_FEATURES, **given: object) -> MessageRows:
    job = PredictJob("models", "m", ("redis://q/a",), "redis://q/b", **given)
    signature = RowSignature("m", {each.name: each for each in inputs}, {"Y": OUT}, 8, 1, False, features)
    return MessageRows(job, signature)


def message(number: int = 0, **fields: bytes) -> QueueMessage:
    return QueueMessage(f"{number}-0", {name.replace("__", ".").encode(): value for name, value in fields.items()})


def test_each_form_gives_the_same_row() -> None:
    raw = struct.pack("<2f", 1.5, -2)
    forms = [
        message(data=b'{"X": [1.5, -2], "unused": 1}'),
        message(data=json.dumps({"X": {"b64": "AADAPwAAAMA="}}).encode()),
        message(X=b"[1.5, -2]"),
        message(X__raw=raw),
    ]
    chunk = rows(VECTOR).chunk(forms)
    assert not chunk.failures
    found = {
        offset: group.arrays["X"][place].tolist()
        for group in chunk.groups
        for place, offset in enumerate(group.offsets)
    }
    assert found == {offset: [1.5, -2.0] for offset in range(4)}


def test_text_of_a_field_is_one_string() -> None:
    chunk = rows(TEXT).chunk([message(TEXT=b"[1, 2]"), message(data=b'{"TEXT": "two"}')])
    assert [group.arrays["TEXT"].tolist() for group in chunk.groups] == [[[b"[1, 2]"], [b"two"]]]


def test_features_are_fields_by_name() -> None:
    features = Features(("size", "city"), {"city": ["Oslo", "Rome"]})
    chunk = rows(VECTOR, features=features).chunk([message(size=b"3", city=b"Rome"), message(size=b"3", city=b"7")])
    assert chunk.groups[0].arrays["X"].tolist() == [[3.0, 1.0]]
    assert "no category '7'" in chunk.failures[1]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"data": b"{"}, "field 'data': not a JSON document"),
        ({"data": b"[1]"}, "expected an object with a member for each input"),
        ({"data": b'{"Z": 1}'}, "input 'X' is missing"),
        ({"X": b"[1, 2, 3]"}, "expected shape [2], without a batch dimension, got [3]"),
        ({"X": b"text"}, "field 'X': not a JSON document"),
        ({"X__raw": b"123"}, "no multiple of the 4 bytes of FP32"),
        ({}, "input 'X' is missing"),
    ],
)
def test_a_message_without_a_row_has_a_reason(fields: dict[str, bytes], reason: str) -> None:
    chunk = rows(VECTOR).chunk([message(X=b"[1, 2]"), message(**fields)])
    assert list(chunk.failures) == [1]
    assert reason in chunk.failures[1]


def test_an_answer_has_id_keys_and_outputs() -> None:
    read = rows(VECTOR, keys=("user", "X"))
    record = b'{"X": [3, 4], "user": {"id": 3}}'
    messages = [message(1, X=b"[1, 2]", user=b"joe"), message(2, data=record), message(3)]
    chunk = read.chunk(messages)
    for group in chunk.groups:
        chunk.results.append(ChunkResult(group.offsets, {"Y": np.full((len(group.offsets), 1), 0.5, np.float32)}))
    answers = read.answers(messages, chunk)
    assert [each[b"id"] for each in answers] == [b"1-0", b"2-0"]
    assert [json.loads(each[b"data"]) for each in answers] == [
        {"user": "joe", "X": [1, 2], "Y": 0.5},
        {"user": {"id": 3}, "X": [3, 4], "Y": 0.5},
    ]


def test_a_dead_letter_keeps_the_fields() -> None:
    letter = dead_letter(QueueMessage("7-1", {b"data": b"{", b"id": b"x"}, deliveries=3), "not JSON")
    assert letter == {
        b"data": b"{",
        b"id": b"x",
        b"naiad-id": b"7-1",
        b"naiad-reason": b"not JSON",
        b"naiad-deliveries": b"3",
    }
