"""The backend without a server: instances on threads, whose rows are computed together."""

import threading

import onnx
import pytest
from bench.decoder_models import DecoderShape, decoder_graph

from naiad.backend.onnx_decoder.backend import OnnxDecoderBackend
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import ErrorCode, InferError
from support.backend_parts import load_model, make_context, new_instance
from support.decoder_clients import DecoderClient, run_all
from support.decoder_models import SMALL, WholePrompt, write_decoder


def config_of(slots=3, **parameters):
    config = ModelConfig(name="m", backend="onnx_decoder")
    config.instance_group.add(count=slots, kind="KIND_CPU")
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    return config


def load(path, config=None):
    return load_model(OnnxDecoderBackend(), make_context(config or config_of(), path))[0]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    path = tmp_path_factory.mktemp("decoder")
    truth = WholePrompt(write_decoder(path / "1"))
    model = load(path, config_of(prompt_tokens="16"))
    yield model, truth
    model.close()


def test_rows_have_the_tokens_of_prompts_alone(decoder):
    model, truth = decoder
    clients = [
        DecoderClient(range(5, 5 + length), max_tokens=count) for length, count in ((40, 20), (3, 50), (12, 9))
    ]
    run_all(model, clients)
    for client, count in zip(clients, (20, 50, 9), strict=True):
        assert client.tokens == truth.greedy(client.prompt, count, eos=None)


def test_slow_client_stops_only_itself(decoder):
    model, truth = decoder
    slow, quick = DecoderClient([7, 8], max_tokens=40), DecoderClient([9], max_tokens=60)
    paused_at = []

    def pause():
        slow.request.is_paused = True
        paused_at.append(len(slow.tokens))

    def resume():
        paused_at.append(len(slow.tokens))
        slow.request.is_paused = False

    slow.after[5] = pause
    quick.after[60] = resume
    run_all(model, [slow, quick])
    assert paused_at[0] == paused_at[1]
    for client, count in ((slow, 40), (quick, 60)):
        assert client.tokens == truth.greedy(client.prompt, count, eos=None)


def test_cancelled_row_ends_and_leaves_its_place(decoder):
    model, truth = decoder
    left, staying = DecoderClient([1, 2, 3], max_tokens=100), DecoderClient([4], max_tokens=60)

    def cancel():
        left.request.cancelled = True

    left.after[10] = cancel
    run_all(model, [left, staying])
    assert 10 <= len(left.tokens) < 20
    assert (left.error, staying.tokens) == (None, truth.greedy([4], 60, eos=None))


def test_end_comes_only_after_the_fewest_tokens(decoder):
    """The end is the likeliest token before: the next likely one is taken then, not the end left out of the text."""
    model, truth = decoder
    prompt = next(
        prompt
        for prompt in ([number] for number in range(256))
        if 0 < len(truth.greedy(prompt, 20, eos=model_eos(model))) < 12
    )
    end = len(truth.greedy(prompt, 20, eos=model_eos(model)))
    early = DecoderClient(prompt, max_tokens=20, ignore_eos=False)
    late = DecoderClient(prompt, max_tokens=20, ignore_eos=False, min_tokens=end + 3)
    run_all(model, [early, late])
    assert early.tokens == [*truth.greedy(prompt, end, eos=None), model_eos(model)]
    assert late.tokens[:end] == early.tokens[:end]
    assert model_eos(model) not in late.tokens[: end + 3]
    logits = truth.logits([*prompt, *late.tokens[:end]])
    logits[model_eos(model)] = -float("inf")
    assert late.tokens[end] == int(logits.argmax())


def model_eos(model):
    (number,) = model.facts.end_tokens
    return number


def test_failed_step_fails_its_rows_alone(decoder, monkeypatch):
    model, truth = decoder
    graph = model.engine._decoder._graph
    works = graph.run

    def fail(*arrays):
        monkeypatch.setattr(graph, "run", works)
        raise RuntimeError("out of luck")

    failing = DecoderClient([1, 2], max_tokens=20)
    failing.after[5] = lambda: monkeypatch.setattr(graph, "run", fail)
    run_all(model, [failing])
    assert failing.error.code is ErrorCode.INTERNAL
    assert failing.error.message == "model 'm' failed on its tokens: RuntimeError: out of luck"
    again = DecoderClient([1, 2], max_tokens=20)
    run_all(model, [again])
    assert again.tokens == truth.greedy([1, 2], 20, eos=None)


def test_rows_that_cannot_be_padded_have_their_tokens(tmp_path):
    shape = DecoderShape(takes_positions=False)
    truth = WholePrompt(write_decoder(tmp_path / "1", shape), shape)
    model = load(tmp_path)
    clients = [DecoderClient(range(9, 9 + length), max_tokens=12) for length in (2, 2, 7)]
    run_all(model, clients)
    for client in clients:
        assert client.tokens == truth.greedy(client.prompt, 12, eos=None)
    model.close()


def test_unload_ends_rows_and_refuses_new_ones(tmp_path):
    write_decoder(tmp_path / "1")
    model = load(tmp_path)
    client = DecoderClient([1], max_tokens=100)

    def unload():
        client.request.is_paused = True
        threading.Thread(target=model.close).start()

    client.after[3] = unload
    run_all(model, [client])
    assert client.error.code is ErrorCode.UNAVAILABLE
    late = DecoderClient([1])
    run_all(model, [late])
    assert late.error.code is ErrorCode.UNAVAILABLE


# --- loads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"context_tokens": "15"}, "a number from 16 to 128"),
        ({"context_tokens": "999"}, "a whole number from 0 to 128"),
        (
            {"context_tokens": "100", "cache_megabytes": "0"},
            "with 100 tokens each need 1 MB, and cache_megabytes is 0",
        ),
        ({"cache_megabytes": "0"}, "raise it, or lower context_tokens or the instances"),
        ({"prompt_tokens": "0"}, "parameter 'prompt_tokens' is '0'"),
        ({"logits": "scores"}, "no output 'scores'"),
        ({"past": "cache.*"}, "no inputs 'cache"),
        ({"past": "cache"}, "names with one"),
        ({"present": "new.*"}, "no output 'new.0.key'"),
        ({"template": "jinja"}, "parameter 'template' is 'jinja'"),
    ],
)
def test_wrong_parameters_are_named(tmp_path, parameters, message):
    write_decoder(tmp_path / "1")
    with pytest.raises(InferError, match=message):
        load(tmp_path, config_of(**parameters))


def test_unknown_input_and_ordinary_models_are_refused(tmp_path):
    path = write_decoder(tmp_path / "1")
    graph = decoder_graph(SMALL)
    graph.graph.input.add(name="use_cache_branch", type=graph.graph.input[0].type)
    onnx.save(graph, path)
    with pytest.raises(InferError, match="has the input 'use_cache_branch', which this backend does not know"):
        load(tmp_path)
    config = config_of()
    config.model_transaction_policy.decoupled = False
    with pytest.raises(InferError, match=r"needs model_transaction_policy \{ decoupled: true \}"):
        load(tmp_path, config)


def test_cache_that_does_not_continue_is_refused(tmp_path):
    path = write_decoder(tmp_path / "1")
    graph = decoder_graph(SMALL)
    # The cache is turned before it is used, as if the export had mistaken it.
    concat = next(node for node in graph.graph.node if node.output[0] == "present.0.value")
    graph.graph.node.add(op_type="Neg", input=["past_key_values.0.value"], output=["turned_past"])
    nodes = [graph.graph.node.pop(), *graph.graph.node]
    concat.input[0] = "turned_past"
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
    onnx.save(graph, path)
    with pytest.raises(InferError, match="its cache cannot be continued"):
        load(tmp_path)


def test_more_instances_than_slots_are_refused(decoder):
    with pytest.raises(InferError, match="3 slots have room in the cache since the load"):
        new_instance(decoder[0], 3)


def test_prompts_and_ends_without_tokenizer(tmp_path):
    path = write_decoder(tmp_path / "1")
    (tmp_path / "1" / "tokenizer.json").unlink()
    truth = WholePrompt(path)
    model = load(tmp_path)
    client = DecoderClient([5, 6, 7], stream=False, max_tokens=10)
    run_all(model, [client])
    assert client.tokens == truth.greedy([5, 6, 7], 10, eos=None)
    model.close()
