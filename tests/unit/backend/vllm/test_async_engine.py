"""The vLLM backend with a double of vLLM: requests, streams, errors, cancellation."""

import json
import os
import sys
import threading

import numpy as np
import pytest

from naiad.backend.api import InstanceSpec
from naiad.backend.vllm.backend import VllmBackend
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.errors import ErrorCode, InferError
from support.backend_parts import load_model, make_context, make_request, output_arrays, strings
from support.vllm_models import DOUBLE, write_vllm

FULL = {
    f"return_{name}": np.array([True])
    for name in ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
}


@pytest.fixture(scope="module", autouse=True)
def double():
    """Put the double on the path, and forget it in the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOUBLE))
        yield
        for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
            del sys.modules[name]


def load(path, kind="KIND_MODEL", device_id=0, **arguments):
    write_vllm(path / "1", **arguments)
    model, config = load_model(VllmBackend(), make_context(ModelConfig(name="m", backend="vllm"), path))
    return model.create_instance(InstanceSpec("m_0", 0, kind, device_id)), config


@pytest.fixture(scope="module")
def instance(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    (path / "1").mkdir()
    (path / "1" / "multi_lora.json").write_text(json.dumps({"rude": "/loras/rude", "kind": "/loras/kind"}))
    loaded, _ = load(path, enable_lora="true")
    yield loaded
    loaded.close()


class Answer:
    """The responses of one request, which come from another thread."""

    def __init__(self, instance, request):
        self.request = request
        self.responses = []
        self._is_over = threading.Event()
        batch = Batch([request], 1)
        batch.emit = self._take
        instance.execute(batch)

    def _take(self, request, response):
        assert request is self.request
        self.responses.append(response)
        if response.final or response.error is not None:
            self._is_over.set()

    def wait(self):
        assert self._is_over.wait(60)
        return self.responses

    def outputs(self):
        return [output_arrays(response) for response in self.wait()]

    def error(self):
        (response,) = self.wait()
        assert response.error is not None
        return response.error


def ask(instance, prompt, sampling=None, **inputs):
    arrays = {"text_input": strings(prompt.encode()), **inputs}
    if sampling is not None:
        text = sampling if isinstance(sampling, bytes) else json.dumps(sampling).encode()
        arrays["sampling_parameters"] = strings(text)
    return Answer(instance, make_request(arrays))


def stream(instance, prompt, sampling=None, **inputs):
    return ask(instance, prompt, sampling, stream=np.array([True]), **inputs)


def test_whole_text_begins_with_the_prompt_unless_excluded(instance):
    (found,) = ask(instance, "one two three").outputs()
    assert found.keys() == {"text_output"}
    assert found["text_output"].tolist() == [b"one two threethree two one"]
    (found,) = ask(instance, "one two three", exclude_input_in_output=np.array([True])).outputs()
    assert found["text_output"].tolist() == [b"three two one"]


def test_stream_has_new_text_and_counts_only(instance):
    found = stream(instance, "one two three", {"max_tokens": 2}, **FULL).outputs()
    assert [each["text_output"].tolist() for each in found] == [[b"three"], [b" two"]]
    assert [each["num_output_tokens"].tolist() for each in found] == [[1], [1]]
    assert [each["finish_reason"].tolist() for each in found] == [[b"None"], [b"length"]]
    assert all(each["num_input_tokens"].tolist() == [3] for each in found)
    assert all(each["cumulative_logprob"].tolist() == [-0.5] for each in found)
    assert all(json.loads(each["logprobs"][0]) is None for each in found)


def test_requests_are_generated_at_the_same_time(instance):
    first = stream(instance, "wait one")
    assert ask(instance, "a b").outputs()[0]["text_output"].tolist() == [b"a bb a"]
    first.request.cancelled = True
    first.wait()


def test_log_probabilities_have_the_form_of_triton(instance):
    found = stream(instance, "a b", {"logprobs": 1}, return_logprobs=np.array([True])).outputs()
    first, second = (json.loads(part["logprobs"][0]) for part in found)
    own = {"logprob": -0.5, "rank": 1, "decoded_token": "b"}
    assert first == [{"2": own, "10000": {"logprob": -2.0, "rank": 2, "decoded_token": "o0"}}]
    assert second[0]["3"]["decoded_token"] == " a"


def test_several_texts_are_elements_of_one_response(instance):
    (found,) = ask(instance, "a b", {"n": 3}, return_num_output_tokens=np.array([True])).outputs()
    assert found["text_output"].tolist() == [b"a bb a"] * 3
    assert found["num_output_tokens"].tolist() == [2, 2, 2]


def test_parameters_of_the_request_are_sampling_parameters(instance):
    request = make_request({"text_input": strings(b"a b c d"), "exclude_input_in_output": np.array([True])})
    request.header.parameters = {"max_tokens": "3", "stop": '["b"]', "temperature": "0.5"}
    (found,) = Answer(instance, request).outputs()
    assert found["text_output"].tolist() == [b"d c "]


def test_adapters_are_named_in_the_parameters(instance):
    (found,) = ask(instance, "a b", {"lora_name": "kind"}, exclude_input_in_output=np.array([True])).outputs()
    assert found["text_output"].tolist() == [b"kind:2 b a"]


def test_cancelled_request_is_aborted(instance, tmp_path, monkeypatch):
    calls = tmp_path / "calls"
    monkeypatch.setenv("VLLM_DOUBLE_CALLS", str(calls))
    answer = stream(instance, "wait one")
    answer.request.cancelled = True
    *_, last = answer.wait()
    assert last.empty_final
    assert calls.read_text().startswith("abort\n")


@pytest.mark.parametrize(
    ("prompt", "sampling", "inputs", "words"),
    [
        ("", None, {}, "'text_input' is empty"),
        ("a", b"{", {}, "'sampling_parameters' is no JSON"),
        ("a", b"[1]", {}, "expected a JSON object"),
        ("a", b"\xff", {}, "not UTF-8"),
        ("a", {"temperature": -1}, {}, "temperature must be non-negative"),
        ("a", {"temperature": "hot"}, {}, "temperature must be non-negative"),
        ("a", {"no_such": 1}, {}, "no_such"),
        ("a", {"output_kind": 0}, {}, "no such parameter"),
        ("a", {"lora_name": "none"}, {}, "one of the model's adapters: rude, kind"),
        ("a", {"lora_name": ["rude"]}, {}, "the name of an adapter"),
        ("a", {"structured_outputs": "{"}, {}, "do not fit vLLM"),
        ("a", {"structured_outputs": {"regex": "a", "json": "{}"}}, {}, "one kind of structured outputs"),
        ("a", {"n": 2}, {"stream": np.array([True])}, "a stream has one text"),
        ("a", None, {"stream": np.array([True]), "exclude_input_in_output": np.array([False])}, "never begins with"),
        ("a " * 100, None, {}, "longer than the maximum model length"),
    ],
)
def test_bad_requests_are_refused(instance, prompt, sampling, inputs, words):
    error = ask(instance, prompt, sampling, **inputs).error()
    assert error.code is ErrorCode.INVALID_ARG
    assert words in error.message


def test_failed_generation_fails_its_request(instance):
    error = ask(instance, "a fail").error()
    assert (error.code, "illegal memory access" in error.message) == (ErrorCode.INTERNAL, True)
    *_, last = stream(instance, "fail later").wait()
    assert "illegal memory access" in last.error.message
    assert ask(instance, "a").outputs()


# --- load -----------------------------------------------------------------------------------------------------------


def test_configuration_is_completed_as_by_triton(tmp_path):
    instance, config = load(tmp_path, kind="KIND_CPU")
    instance.close()
    assert [tensor.name for tensor in config.input if not tensor.optional] == ["text_input"]
    assert {"stream", "sampling_parameters", "return_finish_reason"} < {tensor.name for tensor in config.input}
    assert config.model_transaction_policy.decoupled


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"model": "too-large"}, "cannot start its engine: RuntimeError: Engine core initialization failed"),
        ({"model": "exits"}, "cannot start its engine: SystemExit: 1"),
        (
            {"max_modellen": 5},
            "'max_modellen' in model.json, which is no argument of vLLM's engine; did you mean",
        ),
        ({"dtype": "int3"}, "does not take: ValueError: Unknown dtype: int3"),
        ({"tensor_parallel_size": "2"}, "'tensor_parallel_size' in model.json with \"'2'\""),
        ({"tensor_parallel_size": 2}, "uses 2 GPUs, and an instance of KIND_GPU has one"),
    ],
)
def test_engine_that_does_not_start_fails_the_load(tmp_path, arguments, words, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(InferError) as caught:
        load(tmp_path, kind="KIND_GPU", **arguments)
    assert words.replace('"', "") in caught.value.message.replace('"', "")


@pytest.mark.parametrize(
    ("granted", "device_id", "shown"),
    [
        (None, 1, "1"),
        ("0,1", 1, "1"),
        ("2,3", 0, "2"),
        (" 3 , 2", 1, "2"),
        ("MIG-11111111-0000-0000-0000-000000000000", 0, "MIG-11111111-0000-0000-0000-000000000000"),
        ("GPU-a,GPU-b", 1, "GPU-b"),
    ],
)
def test_engine_sees_a_gpu_that_was_granted(tmp_path, monkeypatch, granted, device_id, shown):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", granted or "")
    if granted is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    loaded, _ = load(tmp_path, kind="KIND_GPU", device_id=device_id)
    try:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == shown
    finally:
        loaded.close()


@pytest.mark.parametrize(("granted", "device_id"), [("", 0), ("2,3", 2), ("2,2", 1)])
def test_gpu_that_was_not_granted_fails_the_load(tmp_path, monkeypatch, granted, device_id):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", granted)
    with pytest.raises(
        InferError, match=f"is on GPU {device_id}, and CUDA_VISIBLE_DEVICES is '{granted}', which has"
    ):
        load(tmp_path, kind="KIND_GPU", device_id=device_id)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == granted


def test_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(InferError, match=r"needs the package 'vllm', which is not installed for .*: pip install"):
        load(tmp_path)
