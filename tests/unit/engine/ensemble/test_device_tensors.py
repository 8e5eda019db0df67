"""Tensors that stay on a device between the steps of an ensemble, on devices that count copies to the host."""

from collections.abc import Iterator, Sequence, Set
from typing import Any, ClassVar

import numpy as np
import pytest

from naiad.backend.tensor_instance import TensorInstance
from naiad.backend.workers.worker_instance import WorkerInstance
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.datatype import DataType
from naiad.core.device_tensor import Device
from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import InferRequest, RequestedOutput, RequestHeader
from naiad.core.response import InferResponse
from naiad.core.tensor import Array, TensorSpec
from naiad.engine.cache.cached_model import CachedModel
from naiad.engine.cache.response_store import LocalCache
from naiad.engine.ensemble.ensemble_graph import EnsembleGraph, find_device_steps
from naiad.engine.ensemble.ensemble_model import EnsembleModel
from naiad.engine.serving.served import Served
from naiad.engine.serving.served_model import ServedModel
from naiad.scheduler.factory import create_scheduler
from naiad.telemetry.statistics.model_statistics import ModelStatistics
from support.backend_parts import execute, make_context
from support.engine_parts import Answers, ScriptedModel, StepLoop

GPU_0, GPU_1 = (2, 0), (2, 1)


class GpuTensor:
    """A tensor of a framework whose device is host memory; counts its copies."""

    copies: ClassVar[list[tuple[Device, float]]] = []
    """Device and first element of each copied tensor."""

    def __init__(self, array: Array, device: Device) -> None:
        self.array, self.device = array, device
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, rows: slice) -> "GpuTensor":
        return GpuTensor(self.array[rows], self.device)

    def __dlpack__(self, *, dl_device: Any = None, **options: Any) -> Any:
        if dl_device != (1, 0):
            raise BufferError("this tensor is on a GPU")
        if np.isnan(self.array).any():
            raise BufferError("CUDA error: an illegal memory access was encountered")
        self.copies.append((self.device, float(self.array.flat[0])))
        return self.array.copy().__dlpack__(**options)

    def __dlpack_device__(self) -> Device:
        return self.device


class UncutTensor(GpuTensor):
    """Has no rows that can be taken out."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__getitem__":
            raise AttributeError(name)
        return super().__getattribute__(name)


class BareTensor(GpuTensor):
    """Does not describe itself."""

    def __init__(self, array: Array, device: Device) -> None:
        super().__init__(array, device)
        del self.shape, self.dtype


class Doubler(TensorInstance):
    """Returns twice its input, on its device if it has one."""

    def __init__(self, config: ModelConfig, device: Device | None, kind: type[GpuTensor] = GpuTensor) -> None:
        super().__init__(make_context(config), device)
        self.kind = kind
        self.received: list[object] = []
        self.staying: Set[str] = frozenset()

    def run(self, inputs: dict[str, Any], output_names: Sequence[str]) -> Sequence[Any]:
        given = inputs["X"]
        assert not isinstance(given, GpuTensor) or given.device == self.device
        self.received.append(given)
        made = 2 * (given.array if isinstance(given, GpuTensor) else given)
        return [made if self.device is None else self.kind(made, self.device) for _ in output_names]

    def run_on_device(self, inputs: dict[str, Any], output_names: Sequence[str], staying: Set[str]) -> Sequence[Any]:
        self.staying = staying
        return self.run(inputs, output_names)


def member(name: str, *, rows: int = 0, dims: Sequence[int] = (2,)) -> ModelConfig:
    config = ModelConfig(name=name, max_batch_size=rows)
    config.input.add(name="X", data_type="TYPE_FP32", dims=dims)
    config.output.add(name="Y", data_type="TYPE_FP32", dims=dims)
    return config


class Server:
    """The router of an ensemble; its members are served on a loop that runs in steps."""

    def __init__(self) -> None:
        self.loop = StepLoop()
        self.served_models: dict[str, Served] = {}
        self.models: list[ServedModel] = []

    def served(self, name: str, version: str = "") -> Served:
        return self.served_models[name]

    def submit(self, request: InferRequest) -> None:
        self.served_models[request.header.model_name].submit(request)

    def add(self, config: ModelConfig, *devices: Device | None, kind: type[GpuTensor] = GpuTensor) -> list[Doubler]:
        instances = [Doubler(config, device, kind) for device in devices]
        model = ServedModel(
            name=config.name,
            version=1,
            config=config,
            backend_model=ScriptedModel(),
            instances=instances,
            scheduler=create_scheduler(config, instance_count=len(instances)),
            statistics=ModelStatistics(config.name, "1"),
            loop=self.loop,
        )
        self.models.append(model)
        self.served_models[config.name] = model
        return instances

    def ensemble(
        self, *steps: tuple[str, str, str], outputs: Sequence[str] = ("OUT",), rows: int = 0
    ) -> EnsembleModel:
        """Return ensemble e; a step is a member, the tensor that it reads and the one that it writes."""
        config = ModelConfig(name="e")
        config.input.add(name="IN", data_type="TYPE_FP32", dims=[2])
        for name in outputs:
            config.output.add(name=name, data_type="TYPE_FP32", dims=[2])
        for name, read, written in steps:
            step = config.ensemble_scheduling.step.add(model_name=name, model_version=-1)
            step.input_map["X"], step.output_map["Y"] = read, written
        return EnsembleModel(
            name="e",
            version=1,
            config=config,
            members={name: self.served_models[name].config for name, _, _ in steps},
            router=self,  # type: ignore[arg-type]
            statistics=ModelStatistics("e", "1"),
            loop=self.loop,
            device_steps=find_device_steps(config, self),  # type: ignore[arg-type]
        )

    def ask(self, model: EnsembleModel, value: float = 1) -> dict[str, list[float]]:
        answers, array = Answers(), np.full(2, value, np.float32)
        header = RequestHeader(model_name="e", inputs=[TensorSpec("IN", DataType.FP32, array.shape)])
        model.submit(InferRequest(header, [array.tobytes()], answers, arrival_ns=1))
        self.loop.run_until(lambda: bool(answers))
        return values(answers.received[0][1])


def values(response: InferResponse) -> dict[str, list[float]]:
    if response.error is not None:
        raise response.error
    pairs = zip(response.header.outputs, response.data, strict=True)
    return {spec.name: np.frombuffer(data, np.float32).tolist() for spec, data in pairs}


@pytest.fixture
def server() -> Iterator[Server]:
    GpuTensor.copies.clear()
    made = Server()
    yield made
    for model in made.models:
        model.stop(5.0)


def test_steps_on_one_device_copy_nothing(server: Server) -> None:
    (first,) = server.add(member("a"), GPU_0)
    (second,) = server.add(member("b"), GPU_0)
    (third,) = server.add(member("c"), GPU_0)
    model = server.ensemble(("a", "IN", "s"), ("b", "s", "t"), ("c", "t", "OUT"))
    assert server.ask(model) == {"OUT": [8, 8]}
    assert GpuTensor.copies == [(GPU_0, 8.0)], "the response alone is copied"
    assert [type(each.received[0]) for each in (first, second, third)] == [np.ndarray, GpuTensor, GpuTensor]
    assert [each.staying for each in (first, second, third)] == [{"Y"}, {"Y"}, frozenset()]


def test_other_devices_share_one_copy(server: Server) -> None:
    server.add(member("a"), GPU_0)
    (second,) = server.add(member("b"), GPU_1)
    server.add(member("c"), GPU_0)
    model = server.ensemble(("a", "IN", "s"), ("b", "s", "t"), ("c", "t", "OUT"))
    assert server.ask(model) == {"OUT": [8, 8]}
    assert GpuTensor.copies == [(GPU_0, 2.0), (GPU_1, 4.0), (GPU_0, 8.0)]
    assert isinstance(second.received[0], np.ndarray)


def test_instances_without_device_get_bytes(server: Server) -> None:
    server.add(member("a"), GPU_0)
    instances = server.add(member("b"), None, GPU_1)
    model = server.ensemble(("a", "IN", "s"), ("b", "s", "OUT"))
    for _ in range(4):
        assert server.ask(model) == {"OUT": [4, 4]}
    assert GpuTensor.copies.count((GPU_0, 2.0)) == 4
    assert all(isinstance(each, np.ndarray) for instance in instances for each in instance.received)


def test_output_for_the_client_is_copied_once(server: Server) -> None:
    server.add(member("a"), GPU_0)
    server.add(member("b"), GPU_0)
    model = server.ensemble(("a", "IN", "s"), ("b", "s", "OUT"), outputs=("s", "OUT"))
    assert server.ask(model) == {"s": [2, 2], "OUT": [4, 4]}
    assert GpuTensor.copies == [(GPU_0, 2.0), (GPU_0, 4.0)]


def test_output_for_cpu_models_is_copied_once(server: Server) -> None:
    server.add(member("a"), GPU_0)
    (second,) = server.add(member("b"), GPU_0)
    server.add(member("c"), None)
    model = server.ensemble(("a", "IN", "s"), ("b", "s", "OUT"), ("c", "s", "OUT_2"), outputs=("OUT", "OUT_2"))
    assert server.ask(model) == {"OUT": [4, 4], "OUT_2": [4, 4]}
    assert GpuTensor.copies == [(GPU_0, 2.0), (GPU_0, 4.0)]
    assert isinstance(second.received[0], np.ndarray)


def test_conditions_are_bytes() -> None:
    config = ModelConfig(name="e")
    config.parameters["run_if.b"].string_value = "s"
    for name, read, written in (("a", "IN", "s"), ("a", "IN", "t"), ("b", "t", "u"), ("c", "u", "OUT")):
        step = config.ensemble_scheduling.step.add(model_name=name, model_version=-1)
        step.input_map["X"], step.output_map["Y"] = read, written
    graph = EnsembleGraph(config, {name: member(name) for name in "abc"}, frozenset(range(4)))
    assert [step.requested[0].stays_on_device for step in graph.steps] == [False, True, True, True]
    assert [step.has_device_inputs for step in graph.steps] == [False, False, True, True]


def test_cached_members_get_and_return_bytes(server: Server) -> None:
    (first,) = server.add(member("a"), GPU_0)
    (second,) = server.add(member("b"), GPU_0)
    (third,) = server.add(member("c"), GPU_0)
    server.served_models["b"] = CachedModel(server.served_models["b"], LocalCache(10_000))
    model = server.ensemble(("a", "IN", "s"), ("b", "s", "t"), ("c", "t", "OUT"))
    for _ in range(2):
        assert server.ask(model) == {"OUT": [8, 8]}
    assert [len(each.received) for each in (first, second, third)] == [2, 1, 2]
    assert all(isinstance(each.received[0], np.ndarray) for each in (second, third))


def test_member_replaced_by_a_cached_one_gets_bytes(server: Server) -> None:
    server.add(member("a"), GPU_0)
    (second,) = server.add(member("b"), GPU_0)
    server.add(member("c"), GPU_0)
    model = server.ensemble(("a", "IN", "s"), ("b", "s", "t"), ("c", "t", "OUT"))
    server.served_models["b"] = CachedModel(server.served_models["b"], LocalCache(10_000))
    for _ in range(2):
        assert server.ask(model) == {"OUT": [8, 8]}
    assert len(second.received) == 1
    assert isinstance(second.received[0], np.ndarray)


def test_padded_members_get_and_return_bytes(server: Server) -> None:
    config = member("b", dims=[-1])
    config.parameters["pad_input.X"].string_value = "buckets=2,4"
    server.add(config, GPU_0)
    assert not server.served("b").takes_device_tensors


def test_failed_copy_names_model_and_output(server: Server) -> None:
    server.add(member("a"), GPU_0)
    server.add(member("b"), GPU_1)
    model = server.ensemble(("a", "IN", "s"), ("b", "s", "OUT"))
    with pytest.raises(InferError) as caught:
        server.ask(model, np.nan)
    assert caught.value.code is ErrorCode.INTERNAL
    assert caught.value.message == (
        "in ensemble 'e', model 'a' returned output 'Y': a GpuTensor on DLPack device (2, 0) cannot become an array: "
        "CUDA error: an illegal memory access was encountered (step of model 'b')"
    )


# --- batches of several requests ------------------------------------------------------------------------------------


def step_request(rows: int, *, stays: bool = True, data: Any = None) -> InferRequest:
    header = RequestHeader(
        model_name="a",
        inputs=[TensorSpec("X", DataType.FP32, (rows, 4))],
        outputs=[RequestedOutput("Y", stays_on_device=stays)],
        has_device_inputs=data is not None,
    )
    given = np.full((rows, 4), rows, np.float32).tobytes() if data is None else data
    request = InferRequest(header, [given], lambda request, response: None)
    request.batch_size = rows
    return request


def test_requests_of_a_batch_get_slices() -> None:
    GpuTensor.copies.clear()
    instance = Doubler(member("a", rows=8, dims=[4]), GPU_0)
    responses = execute(instance, [step_request(1), step_request(3)])
    parts = [response.data[0] for response in responses]
    assert [(len(part), part.shape, part.tensor.array.tolist()[0]) for part in parts] == [  # type: ignore[union-attr]
        (16, (1, 4), [2, 2, 2, 2]),
        (48, (3, 4), [6, 6, 6, 6]),
    ]
    assert [response.header.outputs[0].shape for response in responses] == [(1, 4), (3, 4)]
    assert GpuTensor.copies == []


def test_slices_are_joined_in_host_memory() -> None:
    GpuTensor.copies.clear()
    first, second = Doubler(member("a", rows=8, dims=[4]), GPU_0), Doubler(member("b", rows=8, dims=[4]), GPU_0)
    responses = execute(first, [step_request(1), step_request(3)])
    requests = [step_request(3 if i else 1, data=each.data[0]) for i, each in enumerate(responses)]
    execute(second, requests)
    np.testing.assert_array_equal(second.received[0], [[2] * 4, [6] * 4, [6] * 4, [6] * 4])
    assert GpuTensor.copies == [(GPU_0, 2.0), (GPU_0, 6.0)]


@pytest.mark.parametrize("kind", [UncutTensor, BareTensor])
def test_tensors_that_cannot_be_cut_are_copied(kind: type[GpuTensor]) -> None:
    GpuTensor.copies.clear()
    responses = execute(Doubler(member("a", rows=8, dims=[4]), GPU_0, kind), [step_request(1), step_request(3)])
    assert [np.frombuffer(each.data[0], np.float32)[0] for each in responses] == [2, 6]
    assert len(GpuTensor.copies) == 1


def test_rows_without_alignment_are_copied() -> None:
    GpuTensor.copies.clear()
    request = step_request(2, data=bytes(24))
    request.header = RequestHeader(
        model_name="a",
        inputs=[TensorSpec("X", DataType.FP32, (2, 3))],
        outputs=[RequestedOutput("Y", stays_on_device=True)],
    )
    responses = execute(Doubler(member("a", rows=8, dims=[3]), GPU_0), [request, request])
    assert [bytes(response.data[0]) for response in responses] == [bytes(24)] * 2
    assert len(GpuTensor.copies) == 1


def test_batch_with_a_client_is_copied() -> None:
    GpuTensor.copies.clear()
    responses = execute(
        Doubler(member("a", rows=8, dims=[4]), GPU_0), [step_request(1, stays=False), step_request(3)]
    )
    assert [np.frombuffer(each.data[0], np.float32)[0] for each in responses] == [2, 6]
    assert len(GpuTensor.copies) == 1


def test_input_with_another_shape_is_copied() -> None:
    config = member("b", rows=8, dims=[4])
    config.input[0].reshape.shape.extend([4, 1])
    first, second = Doubler(member("a", rows=8, dims=[4]), GPU_0), Doubler(config, GPU_0)
    (response,) = execute(first, [step_request(2)])
    execute(second, [step_request(2, data=response.data[0])])
    assert np.shape(second.received[0]) == (2, 4, 1)  # type: ignore[arg-type]
    assert isinstance(second.received[0], np.ndarray)


def test_outputs_on_a_device_are_checked() -> None:
    class Wrong(Doubler):
        def run(self, inputs: dict[str, Any], output_names: Sequence[str]) -> Sequence[Any]:
            return [GpuTensor(inputs["X"].astype(np.float64), GPU_0)]

    with pytest.raises(InferError, match="model 'a' returned output 'Y' with datatype FP64"):
        execute(Wrong(member("a", rows=8, dims=[4]), GPU_0), [step_request(1)])


def test_isolated_instances_have_no_device() -> None:
    assert WorkerInstance.device is None
