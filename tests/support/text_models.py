"""Encoders of texts in ONNX with tokenizers, made in place. A text is the bag of its words."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from support.model_repository import write_model

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = ("cats", "dogs", "purr", "bark", "rain", "falls", "sun", "shines")
MAX_TOKENS = 8
"""The most tokens of a text, with [CLS] and [SEP]."""


def write_encoder(directory: Path, filename: str = "model.onnx", *, pooling: str = "mean_tokens") -> None:
    """Write an encoder of embeddings: each word is a dimension, so a text is the normalised count of its words."""
    _write_texts(directory, "BertModel")
    hidden = helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])
    _write_graph(
        directory / filename, [hidden], "last_hidden_state", ["b", "s", len(WORDS)], ["input_ids", "attention_mask"]
    )
    types = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"path": "1_Pooling" if name == "Pooling" else "", "type": f"sentence_transformers.models.{name}"}
        for name in types
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))


def write_cross_encoder(directory: Path) -> None:
    """Write a model of pairs: its logit is the number of equal words of the two texts, minus 1."""
    _write_texts(directory, "BertForSequenceClassification", id2label={"0": "LABEL_0"})
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["hidden"]),
        helper.make_node("Cast", ["token_type_ids"], ["second"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "second"], ["first"]),
        *_sum_of("first"),
        *_sum_of("second"),
        helper.make_node("Mul", ["sum_first", "sum_second"], ["products"]),
        helper.make_node("ReduceSum", ["products", "axis"], ["count"], keepdims=1),
        helper.make_node("Sub", ["count", "one"], ["logits"]),
    ]
    _write_graph(
        directory / "model.onnx", nodes, "logits", ["b", 1], ["input_ids", "attention_mask", "token_type_ids"]
    )


def _sum_of(side: str) -> Sequence[onnx.NodeProto]:
    return [
        helper.make_node("Unsqueeze", [side, "last"], [f"weights_{side}"]),
        helper.make_node("Mul", ["hidden", f"weights_{side}"], [f"words_{side}"]),
        helper.make_node("ReduceSum", [f"words_{side}", "axis"], [f"sum_{side}"], keepdims=0),
    ]


def _write_graph(
    path: Path, nodes: Sequence[onnx.NodeProto], output: str, shape: Sequence[str | int], inputs: Sequence[str]
) -> None:
    # Special tokens have no dimension: only words count.
    table = np.concatenate([np.zeros((len(SPECIAL), len(WORDS))), np.eye(len(WORDS))]).astype(np.float32)
    constants = {"table": table, "one": np.float32(1), "axis": np.array([1]), "last": np.array([2])}
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "s"]) for name in inputs],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def word_tokenizer() -> Tokenizer:
    """Return a tokenizer that knows `WORDS`, and puts [CLS] before and [SEP] behind a text."""
    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def _write_texts(directory: Path, architecture: str, **settings: object) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    word_tokenizer().save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"pad_token": "[PAD]", "model_max_length": MAX_TOKENS})
    )
    config = {"model_type": "bert", "architectures": [architecture], "max_position_embeddings": 16, **settings}
    (directory / "config.json").write_text(json.dumps(config))


# The vector of a text counts its words; the mask has a one for each word, and two more, as a tokenizer's would.
WORD_COUNTS = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        texts = [each.decode() for each in pb_utils.get_input_tensor_by_name(request, "text").as_numpy().ravel()]
        counts = [len(text.split()) for text in texts]
        vectors = np.array([[count, 1] for count in counts], dtype=np.float32)
        mask = np.zeros((len(texts), max(counts) + 2), dtype=np.int64)
        for row, count in zip(mask, counts):
            row[: count + 2] = 1
        return pb_utils.InferenceResponse([pb_utils.Tensor("vector", vectors), pb_utils.Tensor("mask", mask)])
"""
_TENSORS = """
max_batch_size: 4
input [ { name: "text" data_type: TYPE_STRING dims: [ 1 ] } ]
output [
  { name: "vector" data_type: TYPE_FP32 dims: [ 2 ] },
  { name: "mask" data_type: TYPE_INT64 dims: [ -1 ] }
]
"""
_STEP = """
ensemble_scheduling { step {
  model_name: "counts" model_version: -1 input_map { key: "text" value: "text" }
  output_map { key: "vector" value: "vector" } output_map { key: "mask" value: "mask" }
} }
"""
_PARAMETER = 'parameters { key: "openai" value { string_value: "embedding,output=vector,%s" } }\n'


def write_word_counts(repository: Path) -> None:
    """Write a Python model, and ensembles of it whose tokens are counted by a tokenizer, a mask, and not at all."""
    counted = _PARAMETER % "rerank=cosine,tokenizer=tokenizer.json"
    write_model(repository, "counts", 'backend: "python"\n' + _TENSORS + counted, {"1/model.py": WORD_COUNTS})
    ensemble = 'platform: "ensemble"\n' + _TENSORS + _STEP
    write_model(repository, "ensemble_counted", ensemble + counted, {})
    write_model(repository, "ensemble_masked", ensemble + _PARAMETER % "prompt_tokens=mask", {})
    write_model(repository, "ensemble_silent", ensemble + _PARAMETER % "rerank=cosine", {})
    for directory in (repository / "counts" / "1", repository / "ensemble_counted"):
        word_tokenizer().save(str(directory / "tokenizer.json"))
