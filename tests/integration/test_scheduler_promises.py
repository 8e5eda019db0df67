"""What users of inference servers ask of schedulers: exact queues, errors that keep their code, bounded pipelines."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcclient_aio
from tritonclient.utils import InferenceServerException

from support.ensemble_models import tensor, write_ensemble
from support.held_models import Notes, write_held
from support.model_repository import write_identity, write_model
from support.model_zoo import python_source
from support.process_resources import ProcessResources
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

_FAULTY = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        made = []
        for request in requests:
            code = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy().ravel()[0].decode()
            error = pb_utils.TritonError("as asked", getattr(pb_utils.TritonError, code))
            made.append(pb_utils.InferenceResponse(error=error))
        return made
"""
_CALLER = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        made = []
        for request in requests:
            tensor = pb_utils.get_input_tensor_by_name(request, "CODE")
            asked = pb_utils.InferenceRequest(
                model_name="faulty", inputs=[pb_utils.Tensor("CODE", tensor.as_numpy())],
                requested_output_names=["OUT"],
            )
            made.append(pb_utils.InferenceResponse(error=asked.exec().error()))
        return made
"""
_FLOOD = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(600):
                data = np.full(65536, number, np.float32)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", data)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_SLOW_SUM = python_source({"FIRST": "IN[:1].copy()"}, inputs=["IN"], each="time.sleep(0.005)")
STRICT = "dynamic_batching { default_queue_policy { %s } } instance_group [ { count: 1 kind: KIND_CPU } ]"
CODES = {
    "UNKNOWN": "UNKNOWN",
    "INTERNAL": "INTERNAL",
    "NOT_FOUND": "NOT_FOUND",
    "INVALID_ARG": "INVALID_ARGUMENT",
    "UNAVAILABLE": "UNAVAILABLE",
    "UNSUPPORTED": "UNIMPLEMENTED",
    "ALREADY_EXISTS": "ALREADY_EXISTS",
}


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Notes:
    return Notes(tmp_path_factory.mktemp("notes"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, notes: Notes) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    code, out = tensor("CODE", "STRING", "1"), tensor("OUT", dims="1")
    for name, model in (("faulty", _FAULTY), ("caller", _CALLER)):
        config = f'backend: "python" max_batch_size: 0 input [ {code} ] output [ {out} ]'
        write_model(root, name, config, {"1/model.py": model})
    write_ensemble(root, "chained", [code], [out], [("faulty", {"CODE": "CODE"}, {"OUT": "OUT"})], max_batch_size=0)
    for name, policy in (("full", "max_queue_size: 50"), ("late", "default_timeout_microseconds: 300000")):
        write_held(root, name, notes.where, extra=STRICT % policy)
        steps = [("quick", {"INPUT0": "A"}, {"OUTPUT0": "x"}), (name, {"IN": "x"}, {"OUT": "B"})]
        inside = [tensor("A", dims="-1")], [tensor("B", dims="-1")]
        write_ensemble(root, f"{name}_chain", *inside, steps, max_batch_size=1)
    write_identity(root, "quick", extra="dynamic_batching { }")
    write_identity(root, "leaving", max_batch_size=1, parameters={"execute_delay_ms": "200"})
    steps = [("quick", {"INPUT0": "A"}, {"OUTPUT0": "x"}), ("leaving", {"INPUT0": "x"}, {"OUTPUT0": "B"})]
    write_ensemble(root, "leaving_chain", [tensor("A", dims="-1")], [tensor("B", dims="-1")], steps, max_batch_size=1)
    decoupled = "model_transaction_policy { decoupled: true }"
    config = (
        f'backend: "python" input [ {tensor("GO", dims="1")} ] output [ {tensor("OUT", dims="65536")} ] {decoupled}'
    )
    write_model(root, "flood", config, {"1/model.py": _FLOOD})
    config = f'backend: "python" input [ {tensor("IN", dims="65536")} ] output [ {tensor("FIRST", dims="1")} ]'
    write_model(root, "slow_sum", config, {"1/model.py": _SLOW_SUM})
    steps = [("flood", {"GO": "GO"}, {"OUT": "x"}), ("slow_sum", {"IN": "x"}, {"FIRST": "FIRST"})]
    ends = [tensor("GO", dims="1")], [tensor("FIRST", dims="1")]
    write_ensemble(root, "flooded", *ends, steps, max_batch_size=0, extra=decoupled)
    with serving(
        tmp_path_factory.mktemp("server") / "log",
        f"--model-repository={root}",
        "--model-control-mode=explicit",
        "--load-model=*",
    ) as running:
        yield running


def vector(name: str, data: np.ndarray) -> grpcclient.InferInput:
    made = grpcclient.InferInput(name, list(data.shape), "FP32")
    made.set_data_from_numpy(data.astype(np.float32))
    return made


class Crowd:
    """Requests that are sent all at once, and the errors of their callers."""

    def __init__(self, server: ServerProcess, model: str, name: str, count: int) -> None:
        self._server, self._model, self._name, self._count = server, model, name, count
        self.said: Counter[str] = Counter()
        """How often each refusal came, and "right" for the answers."""

    def refused(self, words: str) -> int:
        return sum(count for message, count in self.said.items() if words in message)

    async def ask(self, request_id: str, meanwhile: Callable[[], object] | None = None, factor: int = 1) -> None:
        """Ask, have a thread do something meanwhile, and return when all requests were answered."""

        async def one(client: grpcclient_aio.InferenceServerClient, number: int) -> None:
            given = vector(self._name, np.full((1, 2), number))
            try:
                result = await client.infer(self._model, [given], request_id=request_id)
            except InferenceServerException as error:
                self.said[error.message()] += 1
            else:
                output = result.get_response().outputs[0].name
                assert (result.as_numpy(output) == factor * number).all(), "the answer of another request"
                self.said["right"] += 1

        async with grpcclient_aio.InferenceServerClient(self._server.grpc_url) as client:
            asked = [asyncio.create_task(one(client, number)) for number in range(self._count)]
            if meanwhile is not None:
                await asyncio.to_thread(meanwhile)
            await asyncio.wait_for(asyncio.gather(*asked), 60)


def ask_held(crowd: Crowd, notes: Notes, request_id: str, words: str, refusals: int) -> None:
    """Ask a held model, and release it after `refusals` refusals: they come while its instance is busy."""

    def release() -> None:
        wait_until(lambda: crowd.refused(words) >= refusals, lambda: str(crowd.said))
        notes.release(request_id)

    asyncio.run(crowd.ask(request_id, release, factor=2))


class TestCodes:
    @pytest.mark.parametrize("model", ["faulty", "chained", "caller"])
    @pytest.mark.parametrize("code", CODES)
    def test_a_code_survives_ensembles_and_calls(self, server: ServerProcess, model: str, code: str) -> None:
        given = grpcclient.InferInput("CODE", [1], "BYTES")
        given.set_data_from_numpy(np.array([code], np.object_))
        with (
            grpcclient.InferenceServerClient(server.grpc_url) as client,
            pytest.raises(InferenceServerException, match="as asked") as caught,
        ):
            client.infer(model, [given])
        assert caught.value.status() == f"StatusCode.{CODES[code]}"


class TestQueues:
    def test_burst_waits_as_far_as_there_is_room(self, server: ServerProcess, notes: Notes) -> None:
        """One executes and 50 wait, with any burst."""
        crowd = Crowd(server, "full", "IN", 1000)
        ask_held(crowd, notes, "burst", "Exceeds maximum queue size", 1000 - 52)
        assert crowd.said["right"] <= 52, "at most one more had begun in between"
        assert crowd.said["right"] + crowd.refused("Exceeds maximum queue size") == 1000


class TestEnsembles:
    """Every caller is answered, with the step that failed."""

    def test_a_queue_that_is_full(self, server: ServerProcess, notes: Notes) -> None:
        crowd = Crowd(server, "full_chain", "A", 80)
        ask_held(crowd, notes, "full", "Exceeds maximum queue size", 80 - 52)
        assert sum(crowd.said.values()) == 80
        (message,) = [message for message in crowd.said if message != "right"]
        assert message.startswith("in ensemble 'full_chain', ")
        assert message.endswith("(step of model 'full')")

    def test_a_timeout_in_a_queue(self, server: ServerProcess, notes: Notes) -> None:
        crowd = Crowd(server, "late_chain", "A", 4)
        ask_held(crowd, notes, "late", "Request timeout expired", 3)
        late = "in ensemble 'late_chain', Request timeout expired (step of model 'late')"
        assert crowd.said == {"right": 1, late: 3}

    def test_a_member_that_is_unloaded(self, server: ServerProcess) -> None:
        def unload() -> None:
            server.wait_requests("leaving", executing=1)
            with grpcclient.InferenceServerClient(server.grpc_url) as client:
                client.unload_model("leaving")

        crowd = Crowd(server, "leaving_chain", "A", 12)
        asyncio.run(crowd.ask("leaving", unload))
        assert crowd.said["right"] >= 1
        assert sum(crowd.said.values()) == 12, "a caller was never answered"
        assert all("leaving" in message for message in crowd.said if message != "right")
        late = Crowd(server, "leaving_chain", "A", 1)
        asyncio.run(late.ask("late"))
        (message,) = late.said
        assert message == "Request for unknown model: 'leaving_chain' has no available versions"

    def test_fast_step_before_slow_one_keeps_memory_bounded(self, server: ServerProcess) -> None:
        """600 responses of 256 KB, 150 MB in all, into a step of 5 ms."""
        resources = ProcessResources(server.process.pid)
        before = resources.resident_bytes()
        received: list[float] = []
        peak = 0
        with grpcclient.InferenceServerClient(server.grpc_url) as client:
            done: list[object] = []

            def take(result: grpcclient.InferResult | None, error: Exception | None) -> None:
                if error is not None or result is None:
                    done.append(error)
                    return
                if result.get_response().outputs:
                    received.append(result.as_numpy("FIRST").item())
                if result.get_response().parameters["triton_final_response"].bool_param:
                    done.append(None)

            client.start_stream(take)
            client.async_stream_infer("flooded", [vector("GO", np.ones(1))], enable_empty_final_response=True)
            deadline = time.monotonic() + 60
            while not done and time.monotonic() < deadline:
                peak = max(peak, resources.resident_bytes())
                time.sleep(0.02)
            client.stop_stream()
        assert done == [None]
        assert sorted(received) == list(range(600))
        assert peak - before < 64 * 1024 * 1024


def test_every_client_gets_its_own_answer(server: ServerProcess) -> None:
    """Requests of one to eight rows of lengths that differ, many at a time, over one model that batches."""

    async def run() -> int:
        random = np.random.default_rng(7)
        sizes = [(int(rows), int(length)) for rows, length in random.integers(1, 9, (4000, 2))]

        async def caller(client: grpcclient_aio.InferenceServerClient, numbers: range) -> int:
            wrong = 0
            for number in numbers:
                data = np.full(sizes[number], number, np.float32)
                result = await client.infer("quick", [vector("INPUT0", data)])
                wrong += not np.array_equal(result.as_numpy("OUTPUT0"), data)
            return wrong

        async with grpcclient_aio.InferenceServerClient(server.grpc_url) as client:
            return sum(await asyncio.gather(*[caller(client, range(first, 4000, 40)) for first in range(40)]))

    assert asyncio.run(run()) == 0
