"""Python models that call others while models come and go: control, unloading, death, the end of the server."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as grpcclient

from support.bls_models import PRELUDE, code_input, run_code, write_script
from support.held_models import Notes, write_held
from support.model_repository import write_model
from support.model_zoo import python_source, tensors, write_python
from support.sequence_models import write_running_sum
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
StartServer = Callable[..., ServerProcess]

_TENSORS = tensors({"IN": "FP32 [ -1 ]"}, {"OUT": "FP32 [ -1 ]"})
_SCALE = python_source({"OUT": "IN * 3"}, inputs=["IN"])
_LOADER = (
    PRELUDE
    + """
class TritonPythonModel:
    def initialize(self, args):
        if not pb_utils.is_model_ready("loaded"):
            pb_utils.load_model("loaded")

    def execute(self, requests):
        return [answer(run("loaded", source)) for source in sources(requests)]
"""
)
_SCRIPT_TENSORS = (
    'input [ { name: "CODE" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
    'output [ { name: "RESULT" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
)
LOADED_AT_START = ("script", "other", "stream", "slow", "sum", "oldest")


def notes_of(root: Path) -> Notes:
    """What the model `slow` of a repository notes, and is held by."""
    return Notes(root.with_name(f"{root.name}-notes"))


def write_models(root: Path) -> None:
    write_script(root, "script", count=2)
    write_script(root, "other")
    write_script(root, "loaded")
    write_script(root, "stream", kind="decoupled")
    write_held(root, "slow", notes_of(root).where)
    write_running_sum(root, "sum", "direct { }")
    write_running_sum(root, "oldest", "oldest { max_candidate_sequences: 4 }")
    write_model(root, "loader", f'backend: "python"\n{_SCRIPT_TENSORS}', {"1/model.py": _LOADER})
    for name, called in (("egg", "hen"), ("hen", "egg")):
        write_python(root, name, _TENSORS, {}, initialize=f'pb_utils.load_model("{called}")')


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bls_control")
    write_models(root)
    return root


@pytest.fixture
def notes(repository: Path) -> Notes:
    return notes_of(repository)


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[ServerProcess]:
    root = repository
    loads = [f"--load-model={name}" for name in LOADED_AT_START]
    with serving(root / "log", f"--model-repository={root}", "--model-control-mode=explicit", *loads) as running:
        yield running


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartServer]:
    started: list[ServerProcess] = []

    def launch(*flags: str) -> ServerProcess:
        root = tmp_path / "models"
        root.mkdir()
        write_models(root)
        loads = [f"--load-model={name}" for name in LOADED_AT_START]
        running = ServerProcess(
            tmp_path / "log", f"--model-repository={root}", "--model-control-mode=explicit", *loads, *flags
        )
        started.append(running)
        running.wait_ready()
        return running

    yield launch
    for running in started:
        running.stop()


def inference_count(server: ServerProcess, model: str) -> int:
    return int(server.get(f"/v2/models/{model}/stats").json["model_stats"][0]["inference_count"])


# --- control --------------------------------------------------------------------------------------------------------


def test_a_model_loads_uses_and_unloads_another(server):
    code = """
    steps = [pb_utils.is_model_ready("loaded")]
    pb_utils.load_model("loaded")
    steps += [pb_utils.is_model_ready("loaded"), run("loaded", "result = 7")]
    pb_utils.unload_model("loaded")
    result = [*steps, pb_utils.is_model_ready("loaded"), run("loaded", "result = 7")["code"]]
    """
    assert run_code(server, code) == [False, True, 7, False, "NOT_FOUND"]


def test_model_loads_another_from_files_and_configuration(server):
    config = {"name": "scale", "backend": "python", "max_batch_size": 0}
    config["input"] = [{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}]
    config["output"] = [{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}]
    code = f"""
    pb_utils.load_model("scale", files={{"file:1/model.py": {_SCALE!r}.encode()}}, config={json.dumps(config)!r})
    result = value(call("scale", IN=np.arange(3, dtype=np.float32)), "OUT").tolist()
    pb_utils.unload_model("scale")
    """
    assert run_code(server, code) == [0, 3, 6]


def test_a_load_that_fails_raises(server):
    code = """
    result = []
    for name, fields in (("missing", {}), ("loaded", {"config": "{"}), ("loaded", {"files": {"file:1/x": b""}})):
        try:
            pb_utils.load_model(name, **fields)
        except pb_utils.TritonModelException as error:
            result.append(str(error))
    """
    missing, unreadable, unexplained = run_code(server, code)
    assert "failed to load 'missing'" in missing
    assert "config" in unreadable
    assert "config" in unexplained


def test_a_model_unloads_itself_and_still_answers(server):
    assert server.post("/v2/repository/models/loaded/load").status == 200
    code = 'pb_utils.unload_model("loaded"); result = pb_utils.is_model_ready("loaded")'
    assert run_code(server, code, "loaded") is False
    assert server.post("/v2/repository/models/loaded/load").status == 200
    assert run_code(server, "result = 'again'", "loaded") == "again"
    assert server.post("/v2/repository/models/loaded/unload").status == 200


def test_a_model_cannot_load_itself_or_its_callers(server):
    code = """
try:
    pb_utils.load_model("script")
except pb_utils.TritonModelException as error:
    result = str(error)
"""
    assert "cannot load model 'script' while it executes a request of it" in run_code(server, code)
    assert "while it executes a request of it" in run_code(server, f"result = run('other', {code!r})")
    assert run_code(server, "result = 1") == 1


def test_a_model_loads_another_while_it_is_initialized(server):
    assert server.post("/v2/repository/models/loader/load").status == 200
    assert run_code(server, "result = 'through'", "loader") == "through"
    for name in ("loader", "loaded"):
        assert server.post(f"/v2/repository/models/{name}/unload").status == 200


def test_models_that_load_each_other_are_refused(server):
    answer = server.post("/v2/repository/models/egg/load")
    assert answer.status == 400
    assert "loading that one waits for this one" in answer.json["error"]
    assert run_code(server, "result = 1") == 1


# --- unloading and reloading under way ------------------------------------------------------------------------------


def call_slow(request_id: str) -> str:
    """Return the expression of a call of `slow`, which doubles, that is held until its request may go."""
    sent = f"IN=np.array([[0, 1, 2]], np.float32), fields={{'request_id': '{request_id}'}}"
    return f"call('slow', {sent})"


def is_ready(server: ServerProcess, model: str) -> bool:
    return server.get(f"/v2/models/{model}/ready").status == 200


def test_unloading_the_called_model_lets_calls_finish(server, notes):
    called = call_slow("unloaded")
    code = f"result = [value({called}, 'OUT').tolist(), described({called})]"
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(run_code, server, code)
        notes.wait("unloaded", "began")
        unloading = pool.submit(server.post, "/v2/repository/models/slow/unload")
        wait_until(lambda: not is_ready(server, "slow"))
        notes.release("unloaded")
        assert unloading.result(timeout=60).status == 200
        first, refused = asked.result(timeout=60)
    assert first == [[0, 2, 4]]
    assert refused["code"] == "NOT_FOUND"
    assert "Model 'slow' is not ready" in refused["message"]
    assert server.post("/v2/repository/models/slow/load").status == 200


@pytest.mark.long
def test_reloading_the_called_model_loses_no_call(server):
    code = """
    results = [run("other", "result = 5") for _ in range(150)]
    result = [each for each in results if each != 5]
    """
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(run_code, server, code) for _ in range(2)]
        while not all(each.done() for each in asked):
            assert server.post("/v2/repository/models/other/load").status == 200
        assert [each.result() for each in asked] == [[], []]


def test_caller_is_unloaded_when_its_calls_are_answered(server, notes):
    assert server.post("/v2/repository/models/loaded/load").status == 200
    with ThreadPoolExecutor(2) as pool:
        code = f"result = value({call_slow('called')}, 'OUT').tolist()"
        asked = pool.submit(run_code, server, code, "loaded")
        notes.wait("called", "began")
        unloading = pool.submit(server.post, "/v2/repository/models/loaded/unload")
        wait_until(lambda: not is_ready(server, "loaded"))
        notes.release("called")
        assert unloading.result(timeout=60).status == 200
        assert asked.result(timeout=60) == [[0, 2, 4]]


# --- sequences ------------------------------------------------------------------------------------------------------


def sequence_code(model: str) -> str:
    """Return code that sends two sequences to a model and one request without a beginning."""
    return f"""
    START, END = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
    def step(sequence, number, flags=0):
        fields = {{"correlation_id": sequence, "flags": flags}}
        response = call("{model}", ["OUTPUT"], INPUT=np.full((1, 1), number, np.float32), fields=fields)
        return described(response) if response.has_error() else float(value(response, "OUTPUT")[0, 0])
    result = [
        step(7, 1, START), step(8, 10, START), step(7, 2), step(8, 20), step(7, 3, END), step(8, 5, END),
        step(9, 1)["code"],
    ]
    """


SUMS = [1, 10, 3, 30, 6, 35, "INVALID_ARG"]


@pytest.mark.parametrize("model", ["sum", "oldest"])
def test_sequences_of_a_called_model(server, model):
    assert run_code(server, sequence_code(model)) == SUMS


# --- the end of the server ------------------------------------------------------------------------------------------


def test_a_server_that_ends_lets_calls_finish(start, tmp_path):
    running = start()
    notes = notes_of(tmp_path / "models")
    code = f"result = [value({call_slow('last')}, 'OUT').tolist() for _ in range(2)]"
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(run_code, running, code)
        notes.wait("last", "began")
        running.signal()
        running.wait_log(r"Signal \(15\) received")
        notes.release("last")
        assert asked.result(timeout=60) == [[[0, 2, 4]]] * 2
    assert running.wait_exit() == 0


def test_server_ends_although_model_never_stops_calling(start):
    running = start("--exit-timeout-secs=2")
    endless = "while True: run('other', 'time.sleep(0.05); result = 1')"
    with grpcclient.InferenceServerClient(running.grpc_url) as client:
        ended = threading.Event()
        client.async_infer("script", [code_input(endless)], lambda result, error: ended.set())
        wait_until(lambda: inference_count(running, "other") >= 2)
        running.signal()
        assert running.wait_exit() == 1
        assert ended.wait(60)


def test_thread_that_calls_after_finalize_gets_exception(start):
    running = start()
    code = """
    def work():
        while True:
            try:
                run("other", "result = 1")
            except pb_utils.TritonModelException:
                return
    threading.Thread(target=work).start()
    result = "begun"
    """
    assert run_code(running, code) == "begun"
    wait_until(lambda: inference_count(running, "other") >= 2)
    running.signal()
    assert running.wait_exit() == 0


# --- several server processes ---------------------------------------------------------------------------------------


def until_both_answer(running: ServerProcess, code: str) -> list[Any]:
    """Run code whose result begins with the number of the process, until two processes have; return all results."""
    found: list[Any] = []
    deadline = time.monotonic() + 60
    while len({pid for pid, *_ in found}) < 2:
        assert time.monotonic() < deadline, "one process answered everything for 60 s"
        found.append(run_code(running, code))
    return found


def test_every_process_answers_its_own_calls(start):
    running = start("--processes=2")
    code = "result = [os.getppid(), run('other', 'result = os.getppid()')]"
    found = until_both_answer(running, code)
    assert all(caller == called for caller, called in found)


@pytest.mark.long
def test_a_model_loads_and_unloads_in_every_process(start):
    running = start("--processes=2")
    load = 'pb_utils.load_model("loaded"); result = pb_utils.is_model_ready("loaded")'
    assert run_code(running, load) is True
    found = until_both_answer(running, "result = [os.getppid(), run('loaded', 'result = 3')]")
    assert {result for _, result in found} == {3}
    assert run_code(running, 'pb_utils.unload_model("loaded"); result = pb_utils.is_model_ready("loaded")') is False
    found = until_both_answer(running, "result = [os.getppid(), pb_utils.is_model_ready('loaded')]")
    assert {result for _, result in found} == {False}
    failed = 'try: pb_utils.load_model("missing")\nexcept pb_utils.TritonModelException as e: result = str(e)'
    assert "failed to load 'missing'" in run_code(running, failed)


@pytest.mark.long
def test_sequences_of_a_called_model_in_several_processes(start):
    running = start("--processes=2")
    code = sequence_code("sum") + "result = [os.getppid(), *result]"
    found = until_both_answer(running, code)
    assert [sums for _, *sums in found] == [SUMS] * len(found)


# --- traces ---------------------------------------------------------------------------------------------------------


def test_calls_are_traced_with_request_that_they_name(start, tmp_path):
    file = tmp_path / "trace.json"
    running = start("--trace-config=level=TIMESTAMPS", f"--trace-config=triton,file={file}", "--trace-config=rate=1")
    named = "result = run('other', 'result = 1', fields={'trace': request.trace(), 'request_id': 'named'})"
    assert run_code(running, named) == 1
    assert run_code(running, "result = run('other', 'result = 2', fields={'request_id': 'unnamed'})") == 2
    streamed = """
    fields = {"trace": request.trace(), "request_id": "streamed"}
    threading.Thread(target=lambda: (run("other", "result = 3", fields=fields), sender.send(flags=FINAL))).start()
    """
    with grpcclient.InferenceServerClient(running.grpc_url) as client:
        ended = threading.Event()
        client.start_stream(lambda result, error: ended.set())
        client.async_stream_infer("stream", [code_input(streamed)], enable_empty_final_response=True)
        assert ended.wait(60)
        client.stop_stream()
    running.signal()
    assert running.wait_exit() == 0
    headers = [row for row in json.loads(file.read_text()) if "model_name" in row]
    by_id = {row["id"]: row for row in headers}
    called = {row["request_id"]: row for row in headers if row["model_name"] == "other"}
    assert sorted(called) == ["named", "streamed"]
    assert by_id[called["named"]["parent_id"]]["model_name"] == "script"
    assert by_id[called["streamed"]["parent_id"]]["model_name"] == "stream"
