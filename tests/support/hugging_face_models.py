"""Hugging Face directories for tests: a tiny BERT with random weights and a WordPiece tokenizer, made in place."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from support.decoder_models import CHATML
from support.decoder_models import write_tokenizer as write_byte_tokenizer

WORDS = ("ada", "lives", "in", "paris", "works", "at", "acme", "the", "weather", "is", "bad", "good", "##ly", "##s")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def write_tokenizer(directory: Path) -> None:
    vocabulary = {word: number for number, word in enumerate((*SPECIAL, *WORDS))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        model_max_length=32,
    )  # fmt: skip
    fast.save_pretrained(directory)


def write_bert(directory: Path, kind: str = "Model", **settings: Any) -> Any:
    """Write a directory of `Bert<kind>`, and return the model."""
    torch.manual_seed(7)
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32, initializer_range=0.6, **settings,
    )  # fmt: skip
    model = getattr(transformers, f"Bert{kind}")(config).eval()
    model.save_pretrained(directory)
    write_tokenizer(directory)
    return model


def label_config(labels: tuple[str, ...]) -> dict[str, Any]:
    return {"id2label": dict(enumerate(labels)), "label2id": {label: index for index, label in enumerate(labels)}}


def write_pooling(directory: Path, mode: str, *, normalizes: bool) -> None:
    """Write the files of sentence-transformers."""
    names = ["Transformer", "Pooling", *(["Normalize"] if normalizes else [])]
    paths = {"Pooling": "1_Pooling"}
    modules = [
        {"idx": index, "path": paths.get(name, ""), "type": f"sentence_transformers.models.{name}"}
        for index, name in enumerate(names)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))


def reference(directory: Path, model: Any, text: str) -> Any:
    """Return what transformers' own tokenizer and model compute for one text."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
    with torch.inference_mode():
        return model(**tokenizer([text], return_tensors="pt", truncation=True))


def write_llama(directory: Path, **settings: Any) -> Any:
    """Write a directory of a tiny `LlamaForCausalLM` with a token for each byte, and return the model."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=260, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096, initializer_range=0.6, bos_token_id=256,
        eos_token_id=257, **settings,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(directory)
    write_byte_tokenizer(directory)
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    return model
