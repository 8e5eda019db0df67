"""Python models that call other models, through a real server."""

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from support import onnx_models
from support.bls_models import code_input, run_code, write_script
from support.ensemble_models import tensor, write_ensemble
from support.model_repository import add_sub_config, write_identity, write_model
from support.server_process import ServerProcess, serving
from support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

_REPEAT = """
  backend: "repeat" max_batch_size: 0
  input [ { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "DELAY" data_type: TYPE_UINT32 dims: [ -1 ] },
          { name: "WAIT" data_type: TYPE_UINT32 dims: [ 1 ] } ]
  output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "IDX" data_type: TYPE_UINT32 dims: [ 1 ] } ]
  model_transaction_policy { decoupled: true }
"""
_ADD_SUB = "INPUT0=np.full((1, 16), 5, np.float32), INPUT1=np.full((1, 16), 3, np.float32)"


_IN_THREAD = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(1) as pool:
    result = pool.submit(run, 'lonely', 'result = 1').result()
"""
_IN_DECOUPLED = '''
code = """
response = await ask('lonely', CODE=np.array(['result = 1'], object))
sender.send(answer(described(response)), flags=FINAL)
"""
(response, *_) = call('stream_coroutines', decoupled=True, CODE=np.array([code], object))
result = described(response)
'''


def write_models(root: Path) -> None:
    config = add_sub_config("onnxruntime", extra="dynamic_batching { }")
    write_model(root, "add_sub", config, {"1/model.onnx": onnx_models.add_sub()})
    write_identity(root, "big", max_batch_size=0)
    write_identity(root, "words", datatype="STRING", max_batch_size=0)
    write_identity(root, "slow", max_batch_size=0, parameters={"execute_delay_ms": "3000"})
    (write_model(root, "repeat", _REPEAT) / "1").mkdir(exist_ok=True)
    write_script(root, "script", count=2)
    write_script(root, "other")
    write_script(root, "lonely")
    write_script(root, "coroutines", kind="coroutines")
    write_script(root, "stream", kind="decoupled")
    write_script(root, "stream_coroutines", kind="decoupled_coroutines")
    write_script(root, "memory", count=2, extra="sequence_batching { max_sequence_idle_microseconds: 60000000 }")
    write_script(root, "ordered", count=2, extra="dynamic_batching { preserve_ordering: true }")
    write_script(root, "cached", count=2, extra="response_cache { enable: true }")
    write_ensemble(
        root,
        "narrow",
        [tensor("CODE", "STRING", "1")],
        [tensor("RESULT", "STRING", "1")],
        [("script", {"CODE": "CODE"}, {"RESULT": "RESULT"})],
        max_batch_size=0,
        scheduling="max_inflight_requests: 1",
    )
    write_script(root, "mortal", extra='parameters { key: "restart_limit" value { string_value: "100" } }')
    write_ensemble(
        root,
        "wrapped",
        [tensor("CODE", "STRING", "1")],
        [tensor("RESULT", "STRING", "1")],
        [("lonely", {"CODE": "CODE"}, {"RESULT": "RESULT"})],
        max_batch_size=0,
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("bls")
    write_models(root)
    with serving(root / "log", f"--model-repository={root}", "--cache-config=local,size=1048576") as running:
        yield running


def in_flight(server: ServerProcess, model: str) -> float:
    text = server.get("/metrics", url=server.metrics_url).body.decode()
    name = f'nv_inference_pending_request_count{{model="{model}",version="1"}}'
    return float(next(line for line in text.splitlines() if line.startswith(name)).split()[-1])


def stream(server: ServerProcess, model: str, code: str) -> list:
    """Return what a decoupled model sends, an exception last if it ends with an error."""
    received: list = []
    done = threading.Event()

    def take(result, error) -> None:
        if error is not None:
            received.append(error)
            done.set()
            return
        response = result.get_response()
        found = result.as_numpy("RESULT")
        if found is not None:
            received.append(json.loads(found[0]))
        if response.parameters["triton_final_response"].bool_param:
            done.set()

    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(take)
        client.async_stream_infer(model, [code_input(code)], enable_empty_final_response=True)
        assert done.wait(60)
        client.stop_stream()
    return received


# --- ordinary calls -------------------------------------------------------------------------------------------------


def test_a_model_calls_another_and_uses_its_outputs(server):
    code = f"result = value(call('add_sub', {_ADD_SUB}), 'OUTPUT0').tolist()"
    assert run_code(server, code) == [[8.0] * 16]


def test_only_requested_outputs_come_as_writable_arrays(server):
    code = f"""
    response = call('add_sub', ['OUTPUT1'], {_ADD_SUB})
    (only,) = response.output_tensors()
    array = only.as_numpy()
    array[0, 0] = 40
    result = [only.name(), array.tolist()[0][:2], response.has_error()]
    """
    assert run_code(server, code) == ["OUTPUT1", [40.0, 2.0], False]


@pytest.mark.parametrize("size", [0, 1, 12_288, 300_000, 5_000_000])
def test_tensors_of_any_size_go_there_and_back(server, size):
    code = f"""
    sent = np.arange({size}, dtype=np.float32)
    kept = []
    for _ in range(3):
        kept.append(value(call('big', INPUT0=sent), 'OUTPUT0'))
    result = all(np.array_equal(each, sent) for each in kept) and all(each.flags.writeable for each in kept)
    """
    assert run_code(server, code) is True


def test_strings_go_there_and_back(server):
    code = """
    sent = np.array([b"", b"abc", "\\u00e4".encode(), b"x" * 100_000], object)
    result = [len(each) for each in value(call('words', INPUT0=sent), 'OUTPUT0').tolist()]
    """
    assert run_code(server, code) == [0, 3, 2, 100_000]


def test_header_fields_reach_the_other_model(server):
    code = """
    other = (
        "result = [request.request_id(), request.correlation_id(), request.flags(), request.timeout(), "
        "json.loads(request.parameters() or '{}'), sorted(request.requested_output_names())]"
    )
    fields = dict(
        request_id="r7", correlation_id=42, flags=pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START,
        timeout=1_500_000, parameters={"a": 1, "b": "x", "c": True, "d": 0.5}, model_version=1,
        preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0), trace=request.trace(),
    )
    result = [run('other', other, fields=fields), run('other', other, fields={"correlation_id": "seq"})]
    """
    assert run_code(server, code) == [
        ["r7", 42, 1, 1_500_000, {"a": 1, "b": "x", "c": True, "d": 0.5}, ["RESULT"]],
        ["", "seq", 0, 0, {}, ["RESULT"]],
    ]


def test_calls_count_in_statistics_of_called_model(server):
    def count() -> int:
        return server.get("/v2/models/big/stats").json["model_stats"][0]["inference_count"]

    before = count()
    run_code(server, "for _ in range(7): call('big', INPUT0=np.zeros(3, np.float32))")
    assert count() == before + 7


def test_calls_batch_with_each_other(server):
    code = f"""
    import concurrent.futures
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = [pool.submit(lambda: value(call('add_sub', {_ADD_SUB}), 'OUTPUT0')[0, 0]) for _ in range(200)]
    result = sum(float(each.result()) for each in found)
    """
    assert run_code(server, code) == 8.0 * 200


def test_call_outside_of_batch_from_thread_of_model(server):
    begin = f"""
    def work():
        time.sleep(0.1)
        background["found"] = float(value(call('add_sub', {_ADD_SUB}), 'OUTPUT0')[0, 0])
    background["thread"] = threading.Thread(target=work)
    background["thread"].start()
    """
    run_code(server, begin, "other")
    assert run_code(server, "background['thread'].join(); result = background['found']", "other") == 8.0


def test_a_model_calls_through_several_others(server):
    code = f"""
    inner = "result = float(value(call('add_sub', {_ADD_SUB}), 'OUTPUT1')[0, 0])"
    result = run('wrapped', inner), run('other', "result = run('lonely', %r)" % inner)
    """
    assert run_code(server, code) == [2.0, 2.0]


# --- coroutines -----------------------------------------------------------------------------------------------------


def test_gathered_calls_run_side_by_side(server):
    code = """
    began = time.monotonic()
    asked = [ask('repeat', decoupled=True, IN=np.array([n], np.int32), DELAY=np.array([1000], np.uint32),
                 WAIT=np.array([0], np.uint32)) for n in range(8)]
    streams = await asyncio.gather(*asked)
    async def first(stream):
        async for response in stream:
            return int(value(response, 'OUT')[0])
    found = await asyncio.gather(*map(first, streams))
    return [found, time.monotonic() - began < 6]
    """
    assert run_code(server, code, "coroutines") == [list(range(8)), True]


def test_many_gathered_calls(server):
    code = f"""
    asked = [ask('add_sub', ['OUTPUT0'], {_ADD_SUB}) for _ in range(1000)]
    return sum(float(value(each, 'OUTPUT0')[0, 0]) for each in await asyncio.gather(*asked))
    """
    assert run_code(server, code, "coroutines") == 8000.0


def test_a_cancelled_coroutine_cancels_its_call(server):
    code = """
    code = "time.sleep(0.2); result = request.is_cancelled()"
    try:
        await asyncio.wait_for(ask('other', CODE=np.array([code], object)), 0.05)
    except asyncio.TimeoutError:
        return "timed out"
    """
    assert run_code(server, code, "coroutines") == "timed out"


def test_calls_of_coroutines_and_threads_run_concurrently(server):
    code = f"""
    def work():
        return sum(float(value(call('add_sub', {_ADD_SUB}), 'OUTPUT0')[0, 0]) for _ in range(50))
    loop = asyncio.get_running_loop()
    asked = [ask('add_sub', ['OUTPUT0'], {_ADD_SUB}) for _ in range(50)]
    sums = await asyncio.gather(*(loop.run_in_executor(None, work) for _ in range(4)))
    return sum(sums) + sum(float(value(each, 'OUTPUT0')[0, 0]) for each in await asyncio.gather(*asked))
    """
    assert run_code(server, code, "coroutines") == 8.0 * 250


# --- several responses ----------------------------------------------------------------------------------------------

_NUMBERS = (
    "IN=np.arange({count}, dtype=np.int32), DELAY=np.full({count}, {delay}, np.uint32), WAIT=np.array([0], np.uint32)"
)


def test_decoupled_responses_come_in_order_with_empty_final(server):
    code = f"""
    responses = call('repeat', decoupled=True, {_NUMBERS.format(count=500, delay=0)})
    found = list(responses)
    result = [[int(value(each, 'OUT')[0]) for each in found[:-1]], len(found[-1].output_tensors())]
    result.append(len(list(responses)))
    """
    # Triton: an iterator that has ended gives its responses again.
    assert run_code(server, code) == [list(range(500)), 0, 501]


def test_model_that_is_not_decoupled_gives_one_response(server):
    code = f"result = [float(value(each, 'OUTPUT0')[0, 0]) for each in call('add_sub', decoupled=True, {_ADD_SUB})]"
    assert run_code(server, code) == [8.0]


def test_a_decoupled_model_needs_decoupled_calls(server):
    code = f"result = described(call('repeat', {_NUMBERS.format(count=1, delay=0)}))"
    assert run_code(server, code) == {
        "code": "INVALID_ARG",
        "message": "Model repeat is using the decoupled. The current BLS request call doesn't support models "
        "using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' "
        "calls for decoupled models.'",
    }


def test_cancelled_iterator_ends_with_its_model(server):
    code = f"""
    responses = call('repeat', decoupled=True, {_NUMBERS.format(count=1000, delay=10)})
    first = int(value(next(responses), 'OUT')[0])
    responses.cancel()
    *rest, last = responses
    result = [first, len(rest) < 500, len(last.output_tensors())]
    """
    assert run_code(server, code) == [0, True, 0]
    wait_until(lambda: in_flight(server, "repeat") == 0)


def test_responses_after_an_ignored_cancellation_arrive(server):
    code = """
    body = '''
    sender.send(answer(0))
    while not request.is_cancelled(): time.sleep(0.005)
    for n in range(1, 200):
        sender.send(answer(n))
    sender.send(answer("last"), flags=FINAL)
    '''
    responses = call('stream', decoupled=True, CODE=np.array([body], object))
    next(responses)
    responses.cancel()
    rest = [value(response, 'RESULT')[0] for response in responses]
    result = [len(rest), str(rest[0]), str(rest[-1])]
    """
    count, first, last = run_code(server, code)
    assert count == 200
    assert "1" in first
    assert "last" in last


def test_model_may_answer_its_cancellation(server):
    code = """
    body = '''
    sender.send(answer(0))
    while not request.is_cancelled(): time.sleep(0.005)
    error = pb_utils.TritonError("stopped", pb_utils.TritonError.CANCELLED)
    sender.send(pb_utils.InferenceResponse(error=error), FINAL)
    '''
    responses = call('stream', decoupled=True, CODE=np.array([body], object))
    next(responses)
    responses.cancel()
    (last,) = responses
    result = [described(last)["code"], last.error().message()]
    """
    assert run_code(server, code) == ["CANCELLED", "stopped"]


def test_iterator_gives_its_responses_again(server):
    """The cases of Triton's own test."""
    code = f"""
    responses = call('repeat', decoupled=True, {_NUMBERS.format(count=4, delay=0)})
    def numbers():
        return [int(value(r, 'OUT')[0]) for r in responses if r.output_tensors()]
    result = [int(value(next(responses), 'OUT')[0])]
    result += [numbers(), numbers(), numbers()]
    for count, _ in enumerate(responses, 1):
        if count == 2: break
    result.append(int(value(next(responses), 'OUT')[0]))
    result.append(numbers())
    try:
        next(responses)
    except StopIteration:
        result.append('end')
    """
    assert run_code(server, code) == [0, [1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], 2, [3], "end"]


def test_cancelled_and_dropped_iterator_frees_its_model(server):
    code = """
    body = "for n in range(100_000): sender.send(answer(n))\\nsender.send(flags=FINAL)"
    responses = call('stream', decoupled=True, CODE=np.array([body], object))
    next(responses)
    responses.cancel()
    del responses
    result = "gone"
    """
    assert run_code(server, code) == "gone"
    assert stream(server, "stream", "sender.send(answer('free'), flags=FINAL)") == ["free"]


def test_dropped_iterator_cancels_its_call(server):
    code = """
    body = "for n in range(100_000): sender.send(answer(n))\\nsender.send(flags=FINAL)"
    for response in call('stream', decoupled=True, CODE=np.array([body], object)):
        break
    del response
    result = "gone"
    """
    assert run_code(server, code) == "gone"
    assert stream(server, "stream", "sender.send(answer('free'), flags=FINAL)") == ["free"]


def test_caller_that_takes_no_responses_blocks_sender(server):
    code = """
    body = '''
    for n in range(2000):
        background["sent"] = n
        sender.send(answer(n))
    sender.send(flags=FINAL)
    '''
    import textwrap
    responses = call('stream', decoupled=True, CODE=np.array([textwrap.dedent(body)], object))
    first = described(next(responses))
    time.sleep(0.5)
    arrived = len(responses._arrivals.responses)
    rest = [described(each) for each in responses]
    result = [first, arrived < 500, rest[:-1] == list(range(1, 2000)), rest[-1]]
    """
    assert run_code(server, code) == [0, True, True, None]


def test_large_responses_of_a_decoupled_model(server):
    inner = """for n in range(30):
        text = np.array([b'%d' % n * 200_000], object)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor('RESULT', text)]))
sender.send(flags=FINAL)"""
    code = f"""
    body = {inner!r}
    result = []
    for response in call('stream', decoupled=True, CODE=np.array([body], object)):
        for tensor in response.output_tensors():
            result.append(len(tensor.as_numpy()[0]))
    """
    assert run_code(server, code) == [200_000] * 10 + [400_000] * 20


def test_decoupled_models_call_from_execute_threads_and_coroutines(server):
    plain = f"""
    sender.send(answer(float(value(call('add_sub', {_ADD_SUB}), 'OUTPUT0')[0, 0])))
    def work():
        for response in call('repeat', decoupled=True, {_NUMBERS.format(count=3, delay=1)}):
            if response.output_tensors():
                sender.send(answer(int(value(response, 'OUT')[0])))
        sender.send(flags=FINAL)
    threading.Thread(target=work).start()
    """
    assert stream(server, "stream", plain) == [8.0, 0, 1, 2]
    coroutine = f"""
    found = await asyncio.gather(*(ask('add_sub', {_ADD_SUB}) for _ in range(3)))
    sender.send(answer([float(value(each, 'OUTPUT0')[0, 0]) for each in found]))
    async for response in await ask('repeat', decoupled=True, {_NUMBERS.format(count=3, delay=1)}):
        if response.output_tensors():
            sender.send(answer(int(value(response, 'OUT')[0])))
    sender.send(flags=FINAL)
    """
    assert stream(server, "stream_coroutines", coroutine) == [[8.0] * 3, 0, 1, 2]


def test_awaiting_decoupled_responses_lets_other_coroutines_go_on(server):
    coroutine = f"""
    order = []
    async def ask_one(name, responses):
        for response in await responses:
            if response.output_tensors():
                order.append(name)
    await asyncio.gather(
        ask_one('slow', ask('repeat', decoupled=True, {_NUMBERS.format(count=1, delay=300)})),
        ask_one('fast', ask('repeat', decoupled=True, {_NUMBERS.format(count=1, delay=1)})),
    )
    sender.send(answer(order))
    sender.send(flags=FINAL)
    """
    assert stream(server, "stream_coroutines", coroutine) == [["fast", "slow"]]


# --- errors ---------------------------------------------------------------------------------------------------------


def test_forked_process_gets_an_error_for_calls(server):
    code = """
    def run(queue):
        try:
            call('big', INPUT0=np.zeros(1, np.float32))
        except pb_utils.TritonModelException as error:
            queue.put(str(error))
    import multiprocessing
    forked = multiprocessing.get_context("fork")
    queue = forked.Queue()
    process = forked.Process(target=run, args=(queue,))
    process.start()
    result = queue.get(timeout=60)
    process.join()
    """
    assert "not for processes that it has forked: call them in a thread" in run_code(server, code)


def test_errors_of_the_called_model_keep_their_code(server):
    code = """
    body = "raise_it"
    result = [
        described(call('missing', INPUT0=np.zeros(1, np.float32))),
        described(call('big', INPUT0=np.zeros(1, np.float32), fields={"model_version": 7})),
        described(call('big', INPUT0=np.zeros(1, np.int32))),
        described(call('big', ['NOTHING'], INPUT0=np.zeros(1, np.float32))),
        run('other', "raise ValueError('deep down')"),
    ]
    """
    not_found, no_version, wrong_type, no_output, raised = run_code(server, code)
    assert not_found == {
        "code": "NOT_FOUND",
        "message": "Model missing - Error when running inference: Request for unknown model: 'missing' is not found. "
        "Failed for execute the inference request. Model 'missing' is not ready.",
    }
    assert no_version["code"] == "NOT_FOUND"
    assert wrong_type["code"] == "INVALID_ARG"
    assert "data-type is 'INT32', but model 'big' expects 'FP32'" in wrong_type["message"]
    assert no_output["code"] == "INVALID_ARG"
    assert "unexpected inference output 'NOTHING'" in no_output["message"]
    assert raised["code"] == "INTERNAL"
    assert "ValueError: deep down" in raised["message"]


def test_propagated_error_reaches_client_with_its_code(server):
    code = """
    response = call('missing', INPUT0=np.zeros(1, np.float32))
    raise pb_utils.TritonModelException(response.error().message())
    """
    with pytest.raises(InferenceServerException, match="Model 'missing' is not ready"):
        run_code(server, code)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("request.exec()", "make an InferenceRequest with its inputs"),
        ("call('big', INPUT0=np.zeros(1, complex))", "NumPy dtype"),
        ("call(7, INPUT0=np.zeros(1, np.float32))", "expected model_name to be a str or bytes, found int"),
    ],
)
def test_requests_that_cannot_be_sent(server, code, message):
    guarded = f"try:\n    {code}\nexcept Exception as error:\n    result = str(error)"
    assert message in run_code(server, guarded)
    assert run_code(server, f"result = float(value(call('add_sub', {_ADD_SUB}), 'OUTPUT0')[0, 0])") == 8.0


def test_an_execution_timeout(server):
    code = """
    began = time.monotonic()
    error = described(call('slow', INPUT0=np.zeros(1, np.float32), execution_timeout=50_000))
    result = [error, time.monotonic() - began < 2.5]
    """
    assert run_code(server, code) == [
        {"code": "UNAVAILABLE", "message": "the call of model 'slow' exceeded its execution_timeout, 50000 us"},
        True,
    ]


# --- cancellation ---------------------------------------------------------------------------------------------------


def test_cancelling_request_cancels_calls_that_it_made(server):
    run_code(server, "background.clear()", "other")
    child = "while not request.is_cancelled(): time.sleep(0.005)\nbackground['seen'] = True"
    code = f"background['inner'] = run('other', {child!r})\nresult = 1"
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        ended = threading.Event()
        waiting = client.async_infer("lonely", [code_input(code)], lambda result, error: ended.set())
        server.wait_requests("other", executing=1)
        waiting.cancel()
        assert ended.wait(60)
    assert run_code(server, "result = background.get('seen')", "other") is True
    assert run_code(server, "result = background['inner']['code']", "lonely") == "CANCELLED"


def test_cancelling_request_of_decoupled_model_cancels_its_calls(server):
    run_code(server, "background.clear()", "other")
    child = "while not request.is_cancelled(): time.sleep(0.005)\nbackground['seen'] = True"
    code = f"threading.Thread(target=lambda: (run('other', {child!r}), sender.send(flags=FINAL))).start()"
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        client.start_stream(lambda result, error: None)
        client.async_stream_infer("stream", [code_input(code)])
        server.wait_requests("other", executing=1)
        client.stop_stream(cancel_requests=True)
    assert run_code(server, "result = background.get('seen')", "other") is True


# --- calls that would wait for themselves ---------------------------------------------------------------------------


def test_a_model_with_one_instance_cannot_call_itself(server):
    error = run_code(server, "result = run('lonely', 'result = 1')", "lonely")
    assert error["code"] == "UNAVAILABLE"
    assert "would wait for itself (lonely -> lonely)" in error["message"]
    assert run_code(server, "result = 'free'", "lonely") == "free"


def test_model_with_two_instances_can_call_itself_once(server):
    assert run_code(server, "result = run('script', 'result = 1')") == 1
    deeper = run_code(server, """result = run('script', "result = run('script', 'result = 1')")""")
    assert "would wait for itself (script -> script -> script)" in deeper["message"]


def test_a_circle_through_others_is_refused(server):
    code = """result = run('other', "result = run('lonely', 'result = 1')")"""
    error = run_code(server, code, "lonely")
    assert error["code"] == "UNAVAILABLE"
    assert "would wait for itself (lonely -> other -> lonely)" in error["message"]
    through = run_code(server, "result = run('wrapped', 'result = 1')", "lonely")
    assert "would wait for itself (lonely -> wrapped -> lonely)" in through["message"]
    code = """result = run('other', "result = run('wrapped', 'result = 1')")"""
    assert "(lonely -> other -> wrapped -> lonely)" in run_code(server, code, "lonely")["message"]


def test_sequence_cannot_wait_for_itself_despite_free_instance(server):
    code = "result = run('memory', 'result = 1', fields=dict(correlation_id=5))"
    error = run_code(server, code, "memory", sequence_id=5, sequence_start=True)
    assert "would wait for itself (memory -> memory)" in error["message"]
    through = f"result = run('other', {code!r})"
    error = run_code(server, through, "memory", sequence_id=5, sequence_start=True)
    assert "would wait for itself (memory -> other -> memory)" in error["message"]
    another = "result = run('memory', 'result = 1', fields=dict(correlation_id=6, flags=3))"
    assert run_code(server, another, "memory", sequence_id=5, sequence_start=True, sequence_end=True) == 1


def test_call_with_own_request_of_caller_is_refused(server):
    same = "result = run('cached', sources([request])[0])"
    assert "would wait for itself (cached -> cached)" in run_code(server, same, "cached")["message"]
    assert run_code(server, "result = run('cached', 'result = 1')", "cached") == 1


def test_call_that_outlives_response_of_caller_is_refused(server):
    error = run_code(server, "result = run('ordered', 'result = 1')", "ordered")
    assert "would wait for itself (ordered -> ordered)" in error["message"]
    assert run_code(server, "result = run('other', 'result = 1')", "ordered") == 1


def test_model_called_by_coroutine_cannot_call_itself(server):
    awaited = "return described(await ask('coroutines', CODE=np.array(['return 1'], object)))"
    assert "coroutines -> coroutines" in run_code(server, awaited, "coroutines")["message"]


def test_decoupled_model_whose_execute_returns_may_call_itself(server):
    inner = "sender.send(answer(1), flags=FINAL)"
    code = f"""
    async for response in await ask('stream_coroutines', decoupled=True, CODE=np.array([{inner!r}], object)):
        sender.send(answer(described(response)))
    sender.send(flags=FINAL)
    """
    assert stream(server, "stream_coroutines", code) == [1]


# --- calls that wait too long ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    root = tmp_path_factory.mktemp("impatient")
    write_models(root)
    log = tmp_path_factory.mktemp("log") / "log"
    with serving(log, f"--model-repository={root}", "--call-wait-timeout-secs=1") as running:
        yield running


def chains_logged(server: ServerProcess) -> list[str]:
    """Return the chains of the calls that have waited too long."""
    text = r"has waited for 1 s \(--call-wait-timeout-secs\) without being executed \((.*?)\)"
    return re.findall(text, server.log_text())


@pytest.mark.parametrize(
    ("model", "code", "chain"),
    [
        ("narrow", "result = run('narrow', 'result = 1')", "script -> narrow"),
        ("lonely", _IN_THREAD, "lonely -> lonely"),
        ("lonely", _IN_DECOUPLED, "stream_coroutines -> lonely"),
    ],
    ids=["room of an ensemble", "thread", "decoupled"],
)
def test_other_circles_end_by_the_limit(impatient, model: str, code: str, chain: str):
    before = len(chains_logged(impatient))
    error = run_code(impatient, code, model)
    assert error["code"] == "UNAVAILABLE"
    assert f"({chain})" in error["message"] or f"-> {chain})" in error["message"]
    wait_until(lambda: len(chains_logged(impatient)) > before)
    (logged,) = chains_logged(impatient)[before:]
    assert logged.endswith(chain)
    assert run_code(impatient, "result = 'free'", model) == "free"


def test_two_models_that_call_each_other_at_once(impatient, tmp_path: Path):
    meet = """
open({here!r}, "w").close()
while not os.path.exists({there!r}):
    time.sleep(0.01)
result = run({called!r}, "result = 1")
"""
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    before = len(chains_logged(impatient))
    with ThreadPoolExecutor(2) as pool:
        found = [
            pool.submit(run_code, impatient, meet.format(here=one, there=two, called="other"), "lonely"),
            pool.submit(run_code, impatient, meet.format(here=two, there=one, called="lonely"), "other"),
        ]
        results = [each.result(timeout=60) for each in found]
    (refused,) = [each for each in results if each != 1]
    assert refused["code"] == "UNAVAILABLE"
    wait_until(lambda: len(chains_logged(impatient)) > before)
    (chain,) = chains_logged(impatient)[before:]
    assert chain in ("lonely -> other", "other -> lonely")
    assert f"({chain})" in refused["message"]


def test_clients_of_a_model_that_calls_itself(impatient):
    """Two executions hold both instances, and each waits for one of them."""
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: run_code(impatient, "result = run('script', 'result = 1')"), range(6)))
    assert all(each == 1 or "(script -> script)" in each["message"] for each in found)
    assert run_code(impatient, "result = run('script', 'result = 1')") == 1


def test_a_call_that_executes_has_no_limit(impatient):
    slow = "result = float(value(call('slow', INPUT0=np.full(16, 5, np.float32)), 'OUTPUT0')[0])"
    assert run_code(impatient, slow) == 5.0  # it executes for 3 s


# --- death ----------------------------------------------------------------------------------------------------------


def test_a_worker_that_dies_cancels_its_calls(server):
    run_code(server, "background.clear()", "other")
    child = (
        "os.kill(%d, signal.SIGKILL)\nwhile not request.is_cancelled(): time.sleep(0.005)\nbackground['seen'] = True"
    )
    code = f"run('other', {child!r} % os.getpid())"
    with pytest.raises(InferenceServerException, match="was killed by SIGKILL"):
        run_code(server, code, "mortal")
    assert run_code(server, "result = background.get('seen')", "other") is True
    wait_until(lambda: server.get("/v2/models/mortal/ready").status == 200)
    assert run_code(server, f"result = float(value(call('add_sub', {_ADD_SUB}), 'OUTPUT0')[0, 0])", "mortal") == 8.0


def test_a_called_worker_that_dies_is_an_error(server):
    code = "result = run('mortal', 'os.kill(os.getpid(), signal.SIGKILL)')"
    error = run_code(server, code)
    assert error["code"] == "UNAVAILABLE"
    assert "was killed by SIGKILL" in error["message"]
    wait_until(lambda: server.get("/v2/models/mortal/ready").status == 200)


# --- model control --------------------------------------------------------------------------------------------------


def test_readiness_of_models(server):
    models = [("big",), ("big", "1"), ("big", "2"), ("missing", "")]
    assert run_code(server, f"result = [pb_utils.is_model_ready(*each) for each in {models}]") == [
        True,
        True,
        False,
        False,
    ]


def test_models_cannot_be_loaded_without_explicit_control(server):
    code = """
    result = []
    for action in (pb_utils.load_model, pb_utils.unload_model):
        try:
            action(model_name='big')
        except pb_utils.TritonModelException as error:
            result.append(str(error))
    """
    expected = (
        "explicit model load / unload is not allowed if polling is enabled; start the server with "
        "--model-control-mode=explicit"
    )
    assert run_code(server, code) == [expected] * 2


# --- the example ----------------------------------------------------------------------------------------------------


def test_example_distance(tmp_path):
    examples = Path(__file__).parents[2] / "examples" / "python"
    # Without the examples that it does not call, which start for nothing.
    flags = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in ("distance", "add_sub", "error"))]
    running = ServerProcess(tmp_path / "log", f"--model-repository={examples}", *flags)
    try:
        running.wait_ready()
        for a, b, distance in (([1, 2, 3, 4], [1, 2, 0, 0], 5.0), ([1, 1, 1, 1], [1, 1, 1, 1], 0.0)):
            inputs = [
                {"name": name, "datatype": "FP32", "shape": [1, 4], "data": data}
                for name, data in (("A", a), ("B", b))
            ]
            answer = running.post("/v2/models/distance/infer", {"inputs": inputs})
            assert answer.status == 200, answer.body
            assert answer.json["outputs"][0]["data"] == [distance]
    finally:
        running.stop()
