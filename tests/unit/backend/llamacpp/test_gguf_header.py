"""The metadata of GGUF files, whole, cut off and damaged."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from naiad.backend.llamacpp.gguf_header import read_gguf_header, read_marks


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


ENTRIES = [
    entry("general.architecture", 8, text("llama")),
    entry("tokenizer.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("bc")),
    entry("tokenizer.scores", 9, struct.pack("<IQ", 6, 3) + bytes(12)),
    entry("llama.context_length", 4, struct.pack("<I", 2048)),
    entry("llama.embedding_length", 10, struct.pack("<Q", 576)),
    entry("tokenizer.chat_template", 8, text("{{ messages }}")),
]
FILE = b"GGUF" + struct.pack("<IQQ", 3, 0, len(ENTRIES)) + b"".join(ENTRIES)


def test_header_says_context_and_template(tmp_path):
    (tmp_path / "m.gguf").write_bytes(FILE + b"weights")
    header = read_gguf_header(tmp_path / "m.gguf")
    assert (header.architecture, header.context_length, header.embedding_length) == ("llama", 2048, 576)
    assert header.has_chat_template


@pytest.mark.parametrize(("number", "token"), [(0, "a"), (1, "bc"), (2, ""), (1 << 31, "")])
def test_tokens_of_begin_and_end_are_found(tmp_path, number, token):
    entries = [
        entry("tokenizer.ggml.eos_token_id", 4, struct.pack("<I", number)),
        entry("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("bc")),
        entry("tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 0)),
    ]
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))
    header = read_gguf_header(tmp_path / "m.gguf")
    assert (header.bos_token, header.eos_token) == ("a", token)


def test_marks_are_special_or_written_like_marks(tmp_path):
    tokens = [("<|end|>", 3), ("a", 1), ("<tool_call>", 4), ("ReLU", 4), ("EOT", 3), ("<b>", 1)]
    types = struct.pack("<6i", *[kind for _, kind in tokens])
    entries = [
        entry("tokenizer.ggml.token_type", 9, struct.pack("<IQ", 5, 6) + types),
        entry("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 6) + b"".join(text(token) for token, _ in tokens)),
    ]
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))
    assert read_marks(path, read_gguf_header(path)) == ["<|end|>", "<tool_call>", "EOT"]
    path.write_bytes(FILE)
    assert read_marks(path, read_gguf_header(path)) == []


@pytest.mark.parametrize("size", [2, 10, 24, 40, len(FILE) - 1])
def test_file_that_is_cut_off(tmp_path, size):
    (tmp_path / "m.gguf").write_bytes(FILE[:size])
    with pytest.raises(ValueError, match=r"cut off|no GGUF file"):
        read_gguf_header(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40), "more than 65536"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 60), "a text of"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry("a", 9, struct.pack("<IQ", 8, 1 << 60)),
            "more than 16777216",
        ),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry("a", 9, struct.pack("<IQQ", 8, 1, 1 << 63)), "a text of"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry("a", 77, b""), "unknown type 77"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + entry("a", 9, struct.pack("<IQ", 9, 1)), "array 'a' of the type 9"),
    ],
)
def test_damaged_files_are_named(tmp_path, content, words):
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_gguf_header(tmp_path / "m.gguf")


@pytest.mark.parametrize(("kind", "words"), [(4, "is a reranker, which this backend"), (5, "the pooling type 5")])
def test_models_that_pool_to_no_vectors_are_refused(tmp_path, kind, words):
    entries = [*ENTRIES, entry("llama.pooling_type", 4, struct.pack("<I", kind))]
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))
    with pytest.raises(ValueError, match=words):
        read_gguf_header(path)


@pytest.mark.parametrize(("kind", "makes_vectors"), [(0, False), (1, True), (3, True)])
def test_pooling_says_whether_a_model_makes_vectors(tmp_path, kind, makes_vectors):
    entries = [*ENTRIES, entry("llama.pooling_type", 4, struct.pack("<I", kind))]
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))
    assert read_gguf_header(path).makes_vectors == makes_vectors


@given(st.binary(max_size=200))
def test_any_bytes_end_with_an_answer(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0" + content)
    with contextlib.suppress(ValueError, OSError):
        read_gguf_header(path)
