"""Directories as onnxruntime-genai's model builder writes them, around the small decoders of the tests."""

import json
from pathlib import Path
from typing import Any

from bench.decoder_models import DecoderShape

from support.decoder_models import EOS, SMALL, write_decoder


def genai_config(shape: DecoderShape = SMALL) -> dict[str, Any]:
    """Return the content of `genai_config.json`."""
    decoder = {
        "session_options": {"provider_options": []},
        "filename": "model.onnx",
        "head_size": shape.head_size,
        "hidden_size": shape.width,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "position_ids": "position_ids",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.heads,
    }
    model = {
        "type": "llama",
        "context_length": shape.positions,
        "vocab_size": shape.vocabulary,
        "bos_token_id": EOS - 1,
        "eos_token_id": [EOS],
        "pad_token_id": EOS,
        "decoder": decoder,
    }
    search = {"do_sample": False, "max_length": shape.positions, "past_present_share_buffer": False, "top_k": 50}
    return {"model": model, "search": search}


def write_genai(directory: Path, shape: DecoderShape = SMALL) -> Path:
    """Write a directory with graph, configuration and tokenizer; return the path of the graph."""
    path = write_decoder(directory, shape)
    # The model builder does not write these.
    (directory / "config.json").unlink()
    (directory / "generation_config.json").unlink()
    (directory / "genai_config.json").write_text(json.dumps(genai_config(shape)))
    return path
