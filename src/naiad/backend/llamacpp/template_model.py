"""A model of some 40 KB with the chat template of a GGUF file: llama.cpp renders chats with it as with the file.

llama.cpp makes prompts of chats only where it has a whole model. This one has a vocabulary of single bytes, one
layer, and zeros as weights; it is never computed.
"""

import struct
from collections.abc import Mapping, Sequence

_ARCHITECTURE = "llama"
_WIDTH = 32
"""Numbers of a token's vector."""
_ALIGNMENT = 32
_U32, _I32, _F32, _TEXT, _ARRAY = 4, 5, 6, 8, 9
_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_NORMAL, _CONTROL = 1, 3
"""llama.cpp's types of tokens."""
_TEMPLATE = "tokenizer.chat_template"
PROBLEM = "problem"
"""Name of the output with what a template says of a chat; empty if it has rendered it."""
CONTEXT_TOKENS = 256
"""The window of the model: the least that llama.cpp has."""


def template_model(entries: Mapping[str, object], bos_token: str, eos_token: str) -> bytes:
    """Return a GGUF file with the chat templates among the metadata of another file, and its marks of a text."""
    templates = {name: text for name, text in entries.items() if name.startswith(_TEMPLATE) and isinstance(text, str)}
    tokens = ["<unk>", bos_token or "<s>", eos_token or "</s>", *_byte_characters(), "ab"]
    numbers = {"context_length": CONTEXT_TOKENS, "embedding_length": _WIDTH, "feed_forward_length": _WIDTH}
    metadata = [
        _entry("general.architecture", _TEXT, _text(_ARCHITECTURE)),
        *[_number(f"{_ARCHITECTURE}.{name}", value) for name, value in numbers.items()],
        *[_number(f"{_ARCHITECTURE}.{name}", 1) for name in ("block_count", "attention.head_count")],
        _entry(f"{_ARCHITECTURE}.attention.layer_norm_rms_epsilon", _F32, struct.pack("<f", 1e-5)),
        _entry("tokenizer.ggml.model", _TEXT, _text("gpt2")),
        _entry("tokenizer.ggml.pre", _TEXT, _text("gpt-2")),
        _entry("tokenizer.ggml.tokens", _ARRAY, _array(_TEXT, [_text(token) for token in tokens])),
        _entry("tokenizer.ggml.token_type", _ARRAY, _array(_I32, _types(len(tokens)))),
        _entry("tokenizer.ggml.merges", _ARRAY, _array(_TEXT, [_text("a b")])),
        _number("tokenizer.ggml.bos_token_id", 1),
        _number("tokenizer.ggml.eos_token_id", 2),
        *[_entry(name, _TEXT, _text(text)) for name, text in templates.items()],
    ]
    shapes = {
        "token_embd": (_WIDTH, len(tokens)),
        "output_norm": (_WIDTH,),
        **{f"blk.0.{name}": (_WIDTH, _WIDTH) for name in _MATRICES},
        **{f"blk.0.{name}": (_WIDTH,) for name in ("attn_norm", "ffn_norm")},
    }
    tensors, size = _tensors(shapes)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(metadata)) + b"".join(metadata) + tensors
    return head + bytes(-len(head) % _ALIGNMENT) + bytes(size)


def _byte_characters() -> Sequence[str]:
    """Return the characters by which tokenizers of GPT-2's kind write the 256 bytes."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(number) for number in visible] + [chr(0x100 + number) for number in range(256 - len(visible))]


def _types(count: int) -> Sequence[bytes]:
    return [struct.pack("<i", kind) for kind in [_CONTROL] * 3 + [_NORMAL] * (count - 3)]


def _tensors(shapes: Mapping[str, Sequence[int]]) -> tuple[bytes, int]:
    """Return the descriptions of tensors of float32, and the bytes of their data."""
    parts, offset = [], 0
    for name, shape in shapes.items():
        sizes = struct.pack(f"<{len(shape)}Q", *shape)
        parts.append(_text(f"{name}.weight") + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", 0, offset))
        size = 4
        for each in shape:
            size *= each
        offset += size  # a multiple of the alignment: the width is
    return b"".join(parts), offset


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _entry(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value


def _number(key: str, value: int) -> bytes:
    return _entry(key, _U32, struct.pack("<I", value))


def _array(kind: int, elements: Sequence[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(elements)) + b"".join(elements)
