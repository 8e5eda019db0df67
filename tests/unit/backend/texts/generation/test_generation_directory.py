import json

import pytest

from naiad.backend.framework import Parameters
from naiad.backend.texts.generation.generation_directory import GenerationDirectory
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from support.backend_parts import make_context
from support.decoder_models import CHATML, write_tokenizer


def config_of(**parameters):
    config = ModelConfig(name="m")
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    return config


def directory_of(path, files):
    version = path / "1"
    version.mkdir()
    for name, content in files.items():
        (version / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return GenerationDirectory(make_context(ModelConfig(name="m"), path))


def parameters_of(**parameters):
    return Parameters(config_of(**parameters))


def test_empty_directory_says_nothing(tmp_path):
    found = directory_of(tmp_path, {})
    assert (found.tokenizer, found.window(), found.chat_format(parameters_of())) == (None, 0, "")
    assert found.end_tokens(parameters_of(), 300) == frozenset()
    assert found.sampling_defaults() == {"temperature": 0}


@pytest.mark.parametrize("name", ["max_position_embeddings", "n_positions", "n_ctx"])
def test_window_has_several_names(tmp_path, name):
    assert directory_of(tmp_path, {"config.json": {name: 77}}).window() == 77


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"generation_config.json": {"eos_token_id": [2, 5]}, "config.json": {"eos_token_id": 1}}, {2, 5}),
        ({"config.json": {"eos_token_id": 0}}, {0}),
        ({"tokenizer_config.json": {"eos_token": {"content": "</s>"}}}, {257}),
    ],
)
def test_end_tokens_come_from_the_first_file(tmp_path, files, expected):
    (tmp_path / "1").mkdir()
    write_tokenizer(tmp_path / "1")
    for name, content in files.items():
        (tmp_path / "1" / name).write_text(json.dumps(content))
    found = GenerationDirectory(make_context(ModelConfig(name="m"), tmp_path))
    assert found.end_tokens(parameters_of(), 300) == expected
    assert found.end_tokens(parameters_of(eos_ids="3, 4"), 300) == {3, 4}


def test_token_outside_of_the_vocabulary_ends_nothing(tmp_path):
    (tmp_path / "1").mkdir()
    write_tokenizer(tmp_path / "1")
    (tmp_path / "1" / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    found = GenerationDirectory(make_context(ModelConfig(name="m"), tmp_path))
    assert found.end_tokens(parameters_of(), 257) == frozenset()


def test_defaults_of_a_model_that_is_sampled(tmp_path):
    files = {"generation_config.json": {"do_sample": True, "top_k": 20, "repetition_penalty": 1.1, "max_length": 9}}
    found = directory_of(tmp_path, files).sampling_defaults()
    assert found == {"temperature": 1, "top_k": 20, "repetition_penalty": 1.1}


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config.json": {"chat_template": CHATML}},
        {"tokenizer_config.json": {"chat_template": [{"name": "default", "template": CHATML}]}},
        {"chat_template.jinja": CHATML},
    ],
)
def test_chat_format_is_recognized_and_can_be_named(tmp_path, files):
    found = directory_of(tmp_path, files)
    assert found.chat_format(parameters_of()) == "chatml"
    assert found.chat_format(parameters_of(template="plain")) == "plain"


@pytest.mark.parametrize(
    ("files", "parameters", "message"),
    [
        ({"generation_config.json": {"eos_token_id": "no"}}, {}, "'eos_token_id' in generation_config.json"),
        (
            {"config.json": {"eos_token_id": [2, 300]}},
            {},
            r"'eos_token_id' in config.json with \[2, 300\]; .* to 299",
        ),
        ({}, {"eos_ids": "2,x"}, "parameter 'eos_ids' is '2,x'"),
        ({}, {"eos_ids": "2,300"}, "parameter 'eos_ids' is '2,300', expected numbers of tokens from 0 to 299"),
        ({"generation_config.json": "{"}, {}, "generation_config.json that is no JSON"),
        ({"tokenizer.json": "{}"}, {}, "tokenizer.json that cannot be read"),
        ({"config.json": {"n_ctx": -1}}, {}, "'n_ctx' in config.json with -1"),
        ({"generation_config.json": {"do_sample": True, "top_p": "x"}}, {}, "'top_p' in generation_config.json"),
        ({"generation_config.json": {"do_sample": True, "min_p": 1.5}}, {}, "'min_p' in .* with 1.5; .* from 0 to 1"),
        ({"generation_config.json": {"do_sample": True, "top_k": 2.5}}, {}, "'top_k' in .* a whole number"),
        ({"generation_config.json": '{"do_sample": true, "temperature": NaN}'}, {}, "'temperature' in .* with nan"),
        ({"generation_config.json": '{"repetition_penalty": Infinity}'}, {}, "'repetition_penalty' in .* with inf"),
    ],
)
def test_wrong_values_are_named(tmp_path, files, parameters, message):
    def read_all():
        found = directory_of(tmp_path, files)
        found.end_tokens(parameters_of(**parameters), 300)
        found.window()
        found.sampling_defaults()

    with pytest.raises(InferError, match=message):
        read_all()
