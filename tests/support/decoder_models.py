"""Directories of small decoders as Optimum exports them, and what they should generate."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from bench.decoder_models import DecoderShape, decoder_graph
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SMALL = DecoderShape()
SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
EOS = 257
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def write_tokenizer(directory: Path) -> None:
    """Write a tokenizer with a token for each byte, and the special ones."""
    bytes_first = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(bytes_first)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.save(str(directory / "tokenizer.json"))


def write_decoder(directory: Path, shape: DecoderShape = SMALL, *, eos: int | None = EOS) -> Path:
    """Write a directory as Optimum exports it; return the path of the graph."""
    directory.mkdir(parents=True, exist_ok=True)
    onnx.save(decoder_graph(shape), directory / "model.onnx")
    write_tokenizer(directory)
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "max_position_embeddings": shape.positions}
    files = {
        "config.json": config,
        "generation_config.json": {} if eos is None else {"eos_token_id": eos},
        "tokenizer_config.json": {"chat_template": CHATML},
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))
    return directory / "model.onnx"


class WholePrompt:
    """The truth: the same graph without batches and without cache, the whole text again for each token."""

    def __init__(self, path: Path, shape: DecoderShape = SMALL) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._shape = shape

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Return the logits of the token after these."""
        count = len(tokens)
        nothing = np.zeros((1, self._shape.heads, 0, self._shape.head_size), np.float32)
        feeds = {each.name: nothing for each in self._session.get_inputs()}
        feeds["input_ids"] = np.array([tokens], np.int64)
        feeds["attention_mask"] = np.ones((1, count), np.int64)
        if self._shape.takes_positions:
            feeds["position_ids"] = np.arange(count, dtype=np.int64)[None]
        logits: np.ndarray = self._session.run(["logits"], feeds)[0][0, -1]
        return logits

    def greedy(self, prompt: Sequence[int], count: int, eos: int | None = EOS) -> list[int]:
        """Return the tokens with the largest logits, up to `count` or the end."""
        tokens = list(prompt)
        while len(tokens) < len(prompt) + count:
            token = int(np.argmax(self.logits(tokens)))
            if token == eos:
                break
            tokens.append(token)
        return tokens[len(prompt) :]
