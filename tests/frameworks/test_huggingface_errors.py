"""Hugging Face directories that cannot be served: each fails its load with directory, reason and fix."""

import json

import pytest
from google.protobuf import text_format

from naiad.backend.api import InstanceSpec, ModelContext
from naiad.backend.huggingface.backend import HuggingFaceBackend
from naiad.backend.huggingface.tasks import merge_words
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from support.hugging_face_models import write_bert, write_pooling


def parameter(name, value):
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'


def load(directory, config=""):
    backend = HuggingFaceBackend()
    parsed = text_format.Parse(config, ModelConfig(name="model", backend="huggingface"))
    context = ModelContext("model", 1, parsed, directory, directory, 2)
    completed = backend.auto_complete(context)
    model = backend.load(ModelContext("model", 1, completed, directory, directory, 2))
    return model.create_instance(InstanceSpec("model_0_0", 0, "KIND_CPU"))


def failure(directory, config=""):
    with pytest.raises(InferError) as raised:
        load(directory, config)
    assert f"model 'model' version 1: {directory} " in raised.value.message
    return raised.value.message


def change(directory, name, **values):
    path = directory / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_missing_tokenizer_is_named(tmp_path):
    write_bert(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert "has no tokenizer.json; save a fast tokenizer" in failure(tmp_path)


def test_damaged_tokenizer_is_named(tmp_path):
    write_bert(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    assert "has a tokenizer.json that cannot be read" in failure(tmp_path)


def test_pickled_weights_are_not_read(tmp_path):
    write_bert(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert "has no model.safetensors; pickled weights (pytorch_model.bin) are not read" in failure(tmp_path)


def test_truncated_weights_are_named(tmp_path):
    write_bert(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    message = failure(tmp_path)
    assert "has weights that cannot be loaded: SafetensorError" in message
    assert "copy the whole directory again" in message


@pytest.mark.parametrize("content", ["{", "[]", "{}", "null"])
def test_damaged_config_is_named(tmp_path, content):
    write_bert(tmp_path)
    (tmp_path / "config.json").write_text(content)
    assert "config.json" in failure(tmp_path)


def test_unknown_model_type_is_named(tmp_path):
    write_bert(tmp_path)
    change(tmp_path, "config.json", model_type="hal9000", auto_map={"AutoModel": "modeling.Hal"})
    (tmp_path / "modeling.py").write_text("raise SystemExit('executed')")
    message = failure(tmp_path)
    assert "has the model type 'hal9000' and its own code, which is never executed; transformers" in message


def test_architecture_without_task_names_the_parameter(tmp_path):
    write_bert(tmp_path, "ForMaskedLM")
    message = failure(tmp_path)
    assert "has the architecture BertForMaskedLM, from which no task follows; set the parameter 'task'" in message
    load(tmp_path, parameter("task", "embedding"))


def test_missing_head_is_no_random_one(tmp_path):
    write_bert(tmp_path)
    message = failure(tmp_path, parameter("task", "text-classification"))
    assert "has no weights for 2 parameters of the task 'text-classification' (classifier.bias" in message


def test_weights_of_other_sizes_are_named(tmp_path):
    write_bert(tmp_path)
    change(tmp_path, "config.json", hidden_size=32)
    assert "has weights that cannot be loaded" in failure(tmp_path)


def test_unknown_pooling_and_modules_are_named(tmp_path):
    write_bert(tmp_path)
    write_pooling(tmp_path, "max_tokens", normalizes=True)
    assert "has a pooling in 1_Pooling/config.json that this backend does not compute" in failure(tmp_path)
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Dense"}]))
    assert "has a module 'Dense' in modules.json" in failure(tmp_path)


@pytest.mark.parametrize(("name", "value"), [("max_length", "33"), ("task", "chat"), ("dtype", "int8")])
def test_wrong_parameters_are_named(tmp_path, name, value):
    write_bert(tmp_path)
    with pytest.raises(InferError, match=f"model 'model': parameter '{name}' is '{value}', expected "):
        load(tmp_path, parameter(name, value))


def test_words_of_one_entity_are_merged():
    text = "Ada King lives in Paris France"
    words = [
        ("B-PER", 0.8, 0, 3), ("I-PER", 0.6, 4, 8), ("O", 0.9, 9, 14), ("O", 0.9, 15, 17), ("B-LOC", 0.5, 18, 23),
        ("B-LOC", 0.7, 24, 30),
    ]  # fmt: skip
    assert merge_words(text, words) == [
        {"entity": "PER", "score": 0.7, "start": 0, "end": 8, "text": "Ada King"},
        {"entity": "LOC", "score": 0.5, "start": 18, "end": 23, "text": "Paris"},
        {"entity": "LOC", "score": 0.7, "start": 24, "end": 30, "text": "France"},
    ]
