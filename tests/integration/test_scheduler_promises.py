"""What users of inference servers ask of schedulers: exact queues, errors that keep their code, bounded pipelines."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcclient_aio
from tritonclient.utils import InferenceServerException

from support.ensemble_models import tensor, write_ensemble
from support.model_repository import write_identity, write_model
from support.process_resources import ProcessResources
from support.server_process import ServerProcess

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
_SLOW_SUM = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        made = []
        for request in requests:
            time.sleep(0.005)
            data = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            made.append(pb_utils.InferenceResponse([pb_utils.Tensor("FIRST", data[:1].copy())]))
        return made
"""
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
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("models")
    code, out = tensor("CODE", "STRING", "1"), tensor("OUT", dims="1")
    for name, model in (("faulty", _FAULTY), ("caller", _CALLER)):
        config = f'backend: "python" max_batch_size: 0 input [ {code} ] output [ {out} ]'
        write_model(root, name, config, {"1/model.py": model})
    write_ensemble(root, "chained", [code], [out], [("faulty", {"CODE": "CODE"}, {"OUT": "OUT"})], max_batch_size=0)
    pause = {"execute_delay_ms": "1000"}
    for name, policy in (("full", "max_queue_size: 50"), ("late", "default_timeout_microseconds: 100000")):
        write_identity(root, name, max_batch_size=1, parameters=pause, extra=STRICT % policy)
        steps = [("quick", {"INPUT0": "A"}, {"OUTPUT0": "x"}), (name, {"INPUT0": "x"}, {"OUTPUT0": "B"})]
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
    running = ServerProcess(
        tmp_path_factory.mktemp("server") / "log",
        f"--model-repository={root}",
        "--model-control-mode=explicit",
        "--load-model=*",
    )
    try:
        running.wait_ready()
        yield running
    finally:
        running.stop()


def vector(name: str, data: np.ndarray) -> grpcclient.InferInput:
    made = grpcclient.InferInput(name, list(data.shape), "FP32")
    made.set_data_from_numpy(data.astype(np.float32))
    return made


async def ask_many(server: ServerProcess, model: str, count: int, name: str) -> tuple[Counter[str], float]:
    """Ask all at once; return how often each answer came, and how long the slowest refusal took."""
    said: Counter[str] = Counter()
    slowest_s = 0.0

    async def ask(client: grpcclient_aio.InferenceServerClient, number: int) -> None:
        nonlocal slowest_s
        began = time.monotonic()
        try:
            result = await client.infer(model, [vector(name, np.full((1, 2), number))])
        except InferenceServerException as error:
            said[error.message()] += 1
            slowest_s = max(slowest_s, time.monotonic() - began)
        else:
            output = result.get_response().outputs[0].name
            assert (result.as_numpy(output) == number).all(), "somebody else's answer"
            said["right"] += 1

    async with grpcclient_aio.InferenceServerClient(server.grpc_url) as client:
        await asyncio.gather(*[ask(client, number) for number in range(count)])
    return said, slowest_s


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
    def test_a_burst_waits_as_far_as_there_is_room(self, server: ServerProcess) -> None:
        """One executes and 50 wait, whatever the burst."""
        said = asyncio.run(self.burst(server, 1000))
        assert said["right"] + said["timeout"] <= 52, "at most one more had begun in between"
        assert said["refused"] >= 1000 - 52
        assert sum(said.values()) == 1000

    async def burst(self, server: ServerProcess, count: int) -> Counter[str]:
        said: Counter[str] = Counter()

        async def ask(client: grpcclient_aio.InferenceServerClient) -> None:
            try:
                await client.infer("full", [vector("INPUT0", np.zeros((1, 2)))], client_timeout=2.0)
            except InferenceServerException as error:
                said["refused" if "Exceeds maximum queue size" in error.message() else "timeout"] += 1
            else:
                said["right"] += 1

        async with grpcclient_aio.InferenceServerClient(server.grpc_url) as client:
            await asyncio.gather(*[ask(client) for _ in range(count)])
        return said


class TestEnsembles:
    """Every caller is answered, and told which step it was."""

    def test_a_queue_that_is_full(self, server: ServerProcess) -> None:
        async def fill() -> list[str]:
            async with grpcclient_aio.InferenceServerClient(server.grpc_url) as client:
                asked = [
                    client.infer("full_chain", [vector("A", np.zeros((1, 2)))], client_timeout=3.0) for _ in range(80)
                ]
                found = await asyncio.gather(*asked, return_exceptions=True)
            return [error.message() for error in found if isinstance(error, InferenceServerException)]

        messages = asyncio.run(fill())
        refused = [message for message in messages if "Exceeds maximum queue size" in message]
        assert len(refused) >= 80 - 55
        for message in refused:
            assert message.startswith("in ensemble 'full_chain', ")
            assert message.endswith("(step of model 'full')")

    def test_a_timeout_in_a_queue(self, server: ServerProcess) -> None:
        said, slowest_s = asyncio.run(ask_many(server, "late_chain", 4, "A"))
        late = "in ensemble 'late_chain', Request timeout expired (step of model 'late')"
        assert said == {"right": 1, late: 3}
        assert slowest_s < 0.8, "it is answered while the instance is busy"

    def test_a_member_that_is_unloaded(self, server: ServerProcess) -> None:
        async def unload() -> tuple[Counter[str], float]:
            asked = asyncio.create_task(ask_many(server, "leaving_chain", 12, "A"))
            await asyncio.sleep(0.3)
            async with grpcclient_aio.InferenceServerClient(server.grpc_url) as client:
                await client.unload_model("leaving")
            return await asyncio.wait_for(asked, 20)

        said, _ = asyncio.run(unload())
        assert said["right"] >= 1
        assert sum(said.values()) == 12, "a caller was never answered"
        assert all("leaving" in message for message in said if message != "right")
        late, _ = asyncio.run(ask_many(server, "leaving_chain", 1, "A"))
        (message,) = late
        assert "'leaving'" in message

    def test_a_fast_step_before_a_slow_one_does_not_fill_the_memory(self, server: ServerProcess) -> None:
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


def test_everybody_gets_their_own_answer(server: ServerProcess) -> None:
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
