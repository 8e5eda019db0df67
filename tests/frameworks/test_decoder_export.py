"""A tiny Llama of transformers, exported with its cache: the tokens are the tokens of its own `generate`."""

import json

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from naiad.backend.onnx_decoder.backend import OnnxDecoderBackend
from naiad.config.model_config_pb2 import ModelConfig
from support.backend_parts import load_model, make_context
from support.decoder_clients import DecoderClient, run_all

LAYERS, HEADS, SIZE = 2, 2, 8
CACHES = [f"{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]


class Step(torch.nn.Module):
    """A model in the form of Optimum's exports: keys and values are plain tensors."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids, *past):
        cache = DynamicCache()
        for layer in range(LAYERS):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        made = self.model(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, past_key_values=cache
        )
        return made.logits, *(tensor for layer in cache.layers for tensor in (layer.keys, layer.values))


def export(model, path):
    past = [torch.zeros(2, HEADS, 3, SIZE) for _ in CACHES]
    example = (
        torch.ones(2, 2, dtype=torch.long),
        torch.ones(2, 5, dtype=torch.long),
        torch.tensor([[3, 4]] * 2),
        *past,
    )
    inputs = ["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{name}" for name in CACHES)]
    outputs = ["logits", *(f"present.{name}" for name in CACHES)]
    axes = {name: {0: "batch", 2 if "." in name else 1: f"length of {name}"} for name in (*inputs, *outputs)}
    torch.onnx.export(
        Step(model), example, path, input_names=inputs, output_names=outputs, dynamic_axes=axes, dynamo=False
    )


@pytest.mark.filterwarnings("ignore")
def test_tokens_are_the_tokens_of_transformers(tmp_path):
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
    config = LlamaConfig(
        vocab_size=300, num_key_value_heads=HEADS, max_position_embeddings=128, attn_implementation="eager", **sizes
    )
    model = LlamaForCausalLM(config).eval()
    (tmp_path / "1").mkdir()
    export(model, tmp_path / "1" / "model.onnx")
    (tmp_path / "1" / "config.json").write_text(json.dumps({"max_position_embeddings": 128}))
    served = load_model(OnnxDecoderBackend(), make_context(ModelConfig(name="m", backend="onnx_decoder"), tmp_path))[
        0
    ]
    clients = [DecoderClient(range(5, 5 + length), max_tokens=20) for length in (3, 17, 9)]
    run_all(served, clients)
    for client in clients:
        prompt = torch.tensor([client.prompt])
        found = model.generate(prompt, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
        assert client.tokens == found[0, len(client.prompt) :].tolist()
    served.close()
