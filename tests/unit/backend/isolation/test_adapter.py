"""The adapter that runs an instance of a backend in a worker, without a worker."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from naiad.backend.api import Backend, Instance, InstanceSpec, Model, ModelContext
from naiad.backend.isolation import backend as isolation
from naiad.backend.isolation.adapter import MAX_HEADERS, InstanceAdapter
from naiad.backend.isolation.backend import IsolatedBackend
from naiad.backend.registry import BackendRegistry
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError
from naiad.core.response import RESCHEDULE, InferResponse, ResponseHeader
from naiad.core.tensor import TensorSpec
from naiad.worker.api import request as request_api
from naiad.worker.api.failure import LoadError
from naiad.worker.api.request import ReceivedRequest, RequestPlan, StreamedRequest
from naiad.worker.api.tensor import Tensor
from naiad.worker.model_class import load_adapter_class
from support.backend_parts import make_context
from support.isolated_instances import adapter_args

HEADER = ResponseHeader("m", "1", [TensorSpec("Y", DataType.FP32, (1, 2))])


class ScriptedBackend(Backend):
    """Executes batches as a function says, which a test puts here."""

    name = "scripted"
    closed: list[str]
    ended: list[Any]
    script: Any
    context: ModelContext

    def auto_complete(self, context: ModelContext) -> ModelConfig:
        made = ModelConfig()
        made.CopyFrom(context.config)
        made.max_batch_size = 7
        return made

    def load(self, context: ModelContext) -> Model:
        if context.config.default_model_filename:
            raise InferError(ErrorCode.NOT_FOUND, "there is no such file")
        ScriptedBackend.context = context
        return ScriptedModel()


class ScriptedModel(Model):
    def create_instance(self, spec: InstanceSpec) -> Instance:
        return ScriptedInstance()

    def close(self) -> None:
        ScriptedBackend.closed.append("model")


class ScriptedInstance(Instance):
    def execute(self, batch: Batch) -> Sequence[InferResponse]:
        return ScriptedBackend.script(batch)  # type: ignore[no-any-return]

    def end_sequences(self, ended: Sequence[Any]) -> None:
        ScriptedBackend.ended += ended

    def close(self) -> None:
        ScriptedBackend.closed.append("instance")


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Make the backend importable by the name that workers get."""
    made = ModuleType("scripted_backend")
    made.ScriptedBackend = ScriptedBackend  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "scripted_backend", made)
    ScriptedBackend.closed, ScriptedBackend.ended = [], []
    return made


def args(**fields: Any) -> dict[str, str]:
    config = ModelConfig(name="m", backend="scripted", max_batch_size=4, **fields)
    config.instance_group.add(name="g", count=2, kind="KIND_CPU")
    context = make_context(config, Path("/models/m"), usable_cores=8)
    backend = IsolatedBackend("scripted", "scripted_backend:ScriptedBackend")
    return adapter_args(backend.source_on(()).args(context, InstanceSpec("m_0_1", 1, "KIND_CPU")), context)


def started(**fields: Any) -> InstanceAdapter:
    adapter = InstanceAdapter()
    adapter.initialize(args(**fields))
    return adapter


def request(
    plan: RequestPlan | None = None, cancelled: Any = lambda position: False, rows: int = 1
) -> ReceivedRequest:
    array = np.ones((rows, 2), np.float32)
    plan = plan or RequestPlan(output_names=frozenset({"Y"}))
    return ReceivedRequest(plan, "id-1", [Tensor("X", array)], cancelled, 0)


def answer(value: float = 1.0) -> InferResponse:
    return InferResponse(HEADER, [np.full((1, 2), value, np.float32).tobytes()])


def test_instances_get_their_share_of_the_cores():
    started()
    context = ScriptedBackend.context
    assert context.usable_cores == 4  # two workers on eight cores
    (group,) = context.config.instance_group
    assert group.count == 1
    assert context.version_dir == Path("/models/m/1")


def test_requests_keep_what_clients_sent():
    seen: list[Any] = []
    ScriptedBackend.script = lambda batch: seen.append(batch) or [answer() for _ in batch.requests]
    plan = RequestPlan(
        correlation_id=9, flags=3, timeout_us=50, parameters='{"k": 1}', output_names=frozenset({"Y", "A"})
    )
    started().execute([request(plan, rows=3)])
    (batch,) = seen
    (received,) = batch.requests
    header = received.header
    assert (received.id, batch.size, received.batch_size) == ("id-1", 3, 3)
    assert (header.sequence_id, header.sequence_start, header.sequence_end) == (9, True, True)
    assert (header.timeout_us, header.parameters) == (50, {"k": 1})
    assert [output.name for output in header.outputs] == ["A", "Y"]
    assert header.inputs == (TensorSpec("X", DataType.FP32, (3, 2)),)
    assert bytes(received.data[0]) == np.ones(6, np.float32).tobytes()


def test_equal_headers_are_one_object():
    seen: list[Any] = []
    ScriptedBackend.script = lambda batch: seen.extend(batch.requests) or [answer() for _ in batch.requests]
    adapter, plan = started(), RequestPlan(output_names=frozenset({"Y"}))
    adapter.execute([request(plan), request(plan)])
    assert seen[0].header is seen[1].header
    for _ in range(MAX_HEADERS + 1):
        adapter.execute([request()])
    assert len(adapter._request_headers) <= MAX_HEADERS


def test_cancellation_is_looked_up():
    flags = {0: False}
    seen: list[bool] = []

    def script(batch: Batch) -> Sequence[InferResponse]:
        for value in (False, True):
            flags[0] = value
            seen.append(batch.requests[0].cancelled)
        return [answer()]

    ScriptedBackend.script = script
    started().execute([request(cancelled=flags.__getitem__)])
    assert seen == [False, True]


def test_parameters_and_errors_of_responses_are_passed_on():
    refused = InferResponse(HEADER, error=InferError(ErrorCode.NOT_FOUND, "no such key"))
    late = InferResponse(HEADER, error=InferError(ErrorCode.DEADLINE_EXCEEDED, "too late"))
    answered = InferResponse(HEADER, answer().data, parameters={"n": 2})
    ScriptedBackend.script = lambda batch: [answered, refused, late]
    made = started().execute([request(), request(), request()])
    assert made is not None
    first, second, third = made
    assert first is not None
    assert json.loads(first.parameters()) == {"n": 2}
    assert second is not None
    assert (second.error().message(), int(second.error().code())) == ("no such key", 2)  # type: ignore[union-attr]
    assert third is not None
    assert int(third.error().code()) == 1  # type: ignore[union-attr]  # Triton has no such code


def test_iterative_models_reschedule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_api, "_may_reschedule", True)
    ScriptedBackend.script = lambda batch: [RESCHEDULE, answer()]
    requests = [request(), request()]
    made = started().execute(requests)
    assert made is not None
    assert made[0] is None
    assert made[1] is not None
    assert [request_api.is_rescheduled(each) for each in requests] == [True, False]


class Stream:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, response: Any, *, is_final: bool) -> None:
        self.sent.append((response, is_final))

    def is_cancelled(self) -> bool:
        return False


def test_decoupled_models_emit_through_the_sender():
    def script(batch: Batch) -> Sequence[InferResponse]:
        assert batch.emit is not None
        batch.emit(batch.requests[0], InferResponse(HEADER, answer(5).data, final=False))
        batch.emit(batch.requests[0], InferResponse(HEADER, final=True, empty_final=True))
        return ()

    ScriptedBackend.script = script
    stream = Stream()
    streamed = StreamedRequest(RequestPlan(), "id", [Tensor("X", np.ones((1, 2), np.float32))], stream)
    assert started(model_transaction_policy={"decoupled": True}).execute([streamed]) is None
    (first, is_last), (second, is_final) = stream.sent
    np.testing.assert_array_equal(first.output_tensors()[0].as_numpy(), [[5, 5]])
    assert (is_last, second, is_final) == (False, None, True)


def test_sequences_end_and_everything_is_closed():
    adapter = started()
    adapter.sequence_ended(4, "expired")
    assert ScriptedBackend.ended == [(4, "expired")]
    adapter.finalize()
    assert ScriptedBackend.closed == ["instance", "model"]


def test_the_backend_completes_without_loading():
    said = InstanceAdapter.describe(args())
    assert said["config"]["max_batch_size"] == 7
    assert said["gpu_unsupported_reason"] == "backend 'scripted' does not use GPUs"


def test_load_errors_keep_their_text():
    with pytest.raises(LoadError, match="there is no such file"):
        started(default_model_filename="x")


def test_an_environment_without_packages_is_named():
    with pytest.raises(
        LoadError, match="needs numpy, protobuf, ml_dtypes and orjson in the environment of the worker"
    ):
        load_adapter_class("naiad_that_is_missing.adapter:InstanceAdapter", ())


@pytest.mark.parametrize(
    ("backend", "kind"),
    [("identity", "IsolatedBackend"), ("python", "PythonBackend"), ("onnxruntime", "IsolatedBackend")],
)
def test_the_parameter_selects_the_backend(backend, kind):
    config = ModelConfig(name="m", backend=backend)
    config.parameters["isolation"].string_value = "process"
    registry = BackendRegistry({})
    assert type(registry.get_for(config, "m")).__name__ == kind
    assert registry.get_for(config, "m") is registry.get_for(config, "m")
    assert registry.get_for(config, "m").name == backend


def test_an_environment_implies_isolation():
    config = ModelConfig(name="m", backend="identity")
    registry = BackendRegistry({})
    assert type(registry.get_for(config, "m", {"EXECUTION_ENV_PATH": "/e"})).__name__ == "IsolatedBackend"
    config.parameters["EXECUTION_ENV_PATH"].string_value = "requirements.txt"
    assert type(registry.get_for(config, "m")).__name__ == "IsolatedBackend"


def test_isolating_an_unknown_backend_is_an_error():
    config = ModelConfig(name="m", backend="identiti")
    config.parameters["isolation"].string_value = "process"
    with pytest.raises(InferError, match="unknown backend 'identiti', did you mean 'identity'"):
        BackendRegistry({}).get_for(config, "m")


def test_each_model_has_its_own_gpu_reason(monkeypatch, tmp_path):
    reasons = {"one": "", "two": "its package is for the CPU"}
    monkeypatch.setattr(
        isolation, "ask_once", lambda context, *_: {"gpu_unsupported_reason": reasons[context.name], "config": {}}
    )
    registry = BackendRegistry({})
    backends = {}
    for name in reasons:
        config = ModelConfig(name=name, backend="identity")
        config.parameters["isolation"].string_value = "process"
        backends[name] = registry.get_for(config, name)
        backends[name].auto_complete(make_context(config, tmp_path))
    assert {name: backend.gpu_unsupported_reason() for name, backend in backends.items()} == reasons
    assert registry.modules() == {"identity": "naiad.backend.identity"}
