"""Calls the demonstration's models with stock `tritonclient`, over HTTP or gRPC, and reads the responses."""

import json
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

SENTENCES = (
    "I forgot my password and cannot log in.",
    "How do I reset the login to my account?",
    "Will it rain tomorrow?",
    "What is the weather like in Oslo?",
)
LINES = ("Invoice 2024-0117", "Total due: 1,284.50 EUR")


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of the table that the demonstration prints."""

    model: str
    protocol: str
    given: str
    answer: str
    latency_ms: float


class DemoClient:
    """One protocol of `tritonclient`, reduced to: tensors in, tensors out, milliseconds."""

    def __init__(self, protocol: str, url: str) -> None:
        self.protocol = protocol
        if protocol == "HTTP":
            import tritonclient.http as api
        else:
            import tritonclient.grpc as api
        self._api = api
        self._client = api.InferenceServerClient(url)

    def infer(self, model: str, inputs: dict[str, Array]) -> tuple[Callable[[str], Array], float]:
        """Send one request; return a getter for outputs and the round trip in milliseconds."""
        tensors = []
        for name, array in inputs.items():
            datatype = "BYTES" if array.dtype == object else _DATATYPES[array.dtype.str]
            tensor = self._api.InferInput(name, list(array.shape), datatype)
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        began = time.perf_counter()
        result = self._client.infer(model, tensors)
        return result.as_numpy, (time.perf_counter() - began) * 1e3

    def inputs(self, model: str) -> list[tuple[str, str]]:
        """Return names and datatypes of a model's inputs, from its metadata."""
        metadata = self._client.get_model_metadata(model)
        if self.protocol == "HTTP":
            return [(each["name"], each["datatype"]) for each in metadata["inputs"]]
        return [(each.name, each.datatype) for each in metadata.inputs]

    def outputs(self, model: str) -> list[str]:
        """Return the names of a model's outputs, from its metadata."""
        metadata = self._client.get_model_metadata(model)
        if self.protocol == "HTTP":
            return [output["name"] for output in metadata["outputs"]]
        return [output.name for output in metadata.outputs]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


_DATATYPES = {"<i4": "INT32", "<i8": "INT64", "<f4": "FP32", "<f8": "FP64"}


def sample_files() -> dict[str, bytes]:
    """Return the contents of a few generated files of different kinds."""
    with open(__file__, "rb") as source:
        python = source.read()
    return {
        "this demonstration's source": python,
        "a PNG image": _png(),
        "a JSON document": json.dumps({"name": "naiad", "of": "Neptune", "days": list(range(40))}, indent=2).encode(),
        "a shell script": b'#!/bin/sh\nset -eu\nfor f in *.txt; do\n  echo "$f" && wc -l < "$f"\ndone\nexit 0\n' * 3,
    }


def _png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + bytes((x * y) % 256 for x in range(3 * 64)) for y in range(64))
    size = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def file_types(client: DemoClient, labels: Sequence[str]) -> list[Finding]:
    """Detect the content type of each sample file: bytes to features (Python), features to probabilities (ONNX)."""
    findings = []
    for name, content in sample_files().items():
        get, before_ms = client.infer("file_features", {"content": np.array([[content]], dtype=object)})
        get, after_ms = client.infer("file_type", {"bytes": get("bytes")})
        scores = get("target_label")[0]
        best = int(scores.argmax())
        answer = f"{labels[best]} ({scores[best]:.2f})"
        findings.append(Finding("file_type", client.protocol, name, answer, before_ms + after_ms))
    return findings


def file_features(client: DemoClient) -> list[Array]:
    """Return the input INT32[1,2048] of `file_type` for each sample file."""
    contents = [np.array([[content]], dtype=object) for content in sample_files().values()]
    return [client.infer("file_features", {"content": content})[0]("bytes") for content in contents]


def sentences(client: DemoClient) -> list[Finding]:
    """Find for each sentence the one nearest in meaning: text to tokens (Python), tokens to vectors (ONNX)."""
    texts = np.array([[text.encode()] for text in SENTENCES], dtype=object)
    tokens, before_ms = client.infer("sentence_tokens", {"text": texts})
    names = ("input_ids", "attention_mask", "token_type_ids")
    get, after_ms = client.infer("sentence_embedding", {name: tokens(name) for name in names})
    mask = tokens("attention_mask")[..., None].astype(np.float32)
    vectors = (get("last_hidden_state") * mask).sum(1) / mask.sum(1)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    likeness = vectors @ vectors.T - 2 * np.eye(len(vectors), dtype=np.float32)
    latency_ms = (before_ms + after_ms) / len(SENTENCES)
    return [
        Finding("sentence_embedding", client.protocol, text, f"≈ {SENTENCES[best]} ({row[best]:.2f})", latency_ms)
        for text, row in zip(SENTENCES, likeness, strict=True)
        for best in [int(row.argmax())]
    ]


def text_lines(client: DemoClient, characters: Sequence[str]) -> list[Finding]:
    """Read rendered lines of text: pixels to class scores (ONNX), then greedy CTC decoding here."""
    findings = []
    (output,) = client.outputs("text_line")
    for line in LINES:
        get, latency_ms = client.infer("text_line", {"x": render(line)})
        classes = get(output)[0].argmax(-1)
        kept = [c for c, previous in zip(classes, [0, *classes[:-1]], strict=True) if c not in (0, previous)]
        read = "".join(characters[c] for c in kept)
        findings.append(Finding("text_line", client.protocol, f"an image of “{line}”", f"“{read}”", latency_ms))
    return findings


def render(line: str) -> Array:
    """Return an FP32[1,3,48,W] picture of a line of text, scaled to -1..1 as PP-OCR expects it."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(32)
    width = int(font.getlength(line)) + 24
    image = Image.new("RGB", (width, 48), "white")
    ImageDraw.Draw(image).text((12, 4), line, fill="black", font=font)
    pixels = np.asarray(image, np.float32).transpose(2, 0, 1)[None]
    return np.ascontiguousarray(pixels / 127.5 - 1.0)
