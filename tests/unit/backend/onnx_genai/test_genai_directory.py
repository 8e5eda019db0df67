import json

import pytest

from naiad.backend.framework import Parameters
from naiad.backend.onnx_genai.genai_directory import GenaiDirectory
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError
from support.backend_parts import make_context
from support.decoder_models import CHATML, write_tokenizer
from support.genai_models import genai_config


def directory_of(path, *, model=(), search=(), config=None):
    version = path / "1"
    version.mkdir()
    write_tokenizer(version)
    (version / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    content = genai_config()
    content["model"].update(model)
    content["search"].update(search)
    (version / "genai_config.json").write_text(json.dumps(content if config is None else config))
    return GenaiDirectory(make_context(ModelConfig(name="m"), path))


def facts_of(directory, **parameters):
    config = ModelConfig(name="m")
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    return directory.model_facts(Parameters(config))


def test_file_says_window_ends_and_sampling(tmp_path):
    facts = facts_of(directory_of(tmp_path, model={"context_length": 9000}))
    assert (facts.window, facts.vocabulary, facts.end_tokens) == (4096, 260, {257})
    assert facts.sampling == {"temperature": 0}
    assert facts.prompts.chat_format == "chatml"


def test_sampling_of_the_file_counts(tmp_path):
    search = {"do_sample": True, "top_k": 7, "top_p": 0.5, "temperature": None, "repetition_penalty": 1.5}
    facts = facts_of(directory_of(tmp_path, search=search), context_tokens="64")
    assert facts.window == 64
    assert facts.sampling == {"temperature": 1, "top_k": 7, "top_p": 0.5, "repetition_penalty": 1.5}


def test_threads_of_the_file_stay(tmp_path):
    directory = directory_of(tmp_path)
    options = {"intra_op_num_threads": 3, "session.intra_op.allow_spinning": "0"}
    assert json.loads(directory.session_overlay(3)) == {"model": {"decoder": {"session_options": options}}}
    directory.settings["decoder"]["session_options"] = options
    assert json.loads(directory.session_overlay(5)) == {"model": {"decoder": {"session_options": {}}}}


@pytest.mark.parametrize(
    ("model", "search", "message"),
    [
        ({"vision": {}}, {}, "has 'vision' beside the decoder in genai_config.json; only models of a decoder alone"),
        ({"vocab_size": 0}, {}, "write 'vocab_size' in genai_config.json"),
        ({"vocab_size": "many"}, {}, "'vocab_size' in genai_config.json with 'many'; expected a whole number"),
        ({"eos_token_id": [260]}, {}, "'eos_token_id' in genai_config.json with .*; expected numbers of tokens"),
        ({"context_length": -1}, {}, "'context_length' in genai_config.json with -1"),
        ({}, {"do_sample": True, "top_p": 3}, "'top_p' in genai_config.json with 3; .* model builder"),
        ({"decoder": "model.onnx"}, {}, "'decoder' in genai_config.json with 'model.onnx'"),
        ({"decoder": {"session_options": [1]}}, {}, "'session_options' in genai_config.json"),
    ],
)
def test_wrong_values_are_named(tmp_path, model, search, message):
    with pytest.raises(InferError, match=message):
        facts_of(directory_of(tmp_path, model=model, search=search))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "has no 'decoder' in genai_config.json"),
        ({"model": []}, "has 'model' in genai_config.json with \\[\\]; write the directory again"),
        ([], "has a genai_config.json with a list"),
    ],
)
def test_other_files_are_refused(tmp_path, config, message):
    with pytest.raises(InferError, match=message):
        directory_of(tmp_path, config=config)


def test_directory_without_the_file_is_refused(tmp_path):
    (tmp_path / "1").mkdir()
    with pytest.raises(InferError, match=r"has no genai_config\.json"):
        GenaiDirectory(make_context(ModelConfig(name="m"), tmp_path))
