"""Decoupled Python models in real workers: responses in any number, from any thread, and what may go wrong."""

import os
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest

from naiad.core.errors import ErrorCode
from naiad.core.response import InferResponse
from support.backend_parts import output_arrays, strings
from support.python_models import Streams, decoupled_config, serve_decoupled

FLOATS = np.array([5], np.float32)


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., Streams]]:
    with ExitStack() as stack:

        def begin(source: str, config=None, **fields) -> Streams:
            return stack.enter_context(serve_decoupled(tmp_path / "m", source, config, **fields))

        yield begin


@pytest.fixture
def executing(start) -> Callable[..., Streams]:
    """Starts a model whose `execute(self, requests)` consists of these statements."""

    def begin(statements: str, config=None, **fields) -> Streams:
        body = textwrap.indent(textwrap.dedent(statements), " " * 8)
        return start(f"class TritonPythonModel:\n    def execute(self, requests):\n{body}", config, **fields)

    return begin


def error_of(response: InferResponse) -> str:
    assert response.final
    assert response.error is not None
    return response.error.message


# --- any number of responses ----------------------------------------------------------------------------------------


def test_responses_come_in_order_and_flag_ends_them(executing):
    streams = executing(
        """
        for request in requests:
            sender = request.get_response_sender()
            assert sender is request.get_response_sender()
            for n in range(int(value(request)[0])):
                sender.send(number(n))
            sender.send(flags=FINAL)
        """
    )
    for count in (0, 1, 2, 300, 5):
        request = streams.submit({"IN": np.array([count], np.float32)})
        assert streams.numbers(request) == list(range(count))
        received = streams.wait(request)
        assert [each.final for each in received] == [False] * count + [True]
        assert received[-1].empty_final
        assert all(each.header.model_name == "m" for each in received)


def test_the_final_response_may_carry_outputs(executing):
    streams = executing("for request in requests: request.get_response_sender().send(number(3), flags=FINAL)")
    request = streams.submit({"IN": FLOATS})
    (only,) = streams.wait(request)
    assert only.final
    assert not only.empty_final
    assert output_arrays(only)["OUT"].tolist() == [3.0]


def test_senders_work_in_threads_during_next_batch(start):
    streams = start(
        """
        class TritonPythonModel:
            def initialize(self, args):
                self.open = []
                self.config = json.loads(args["model_config"])

            def execute(self, requests):
                assert pb_utils.using_decoupled_model_transaction_policy(self.config)
                self.open += [(request.get_response_sender(), value(request)[0]) for request in requests]
                if len(self.open) == 3:
                    threading.Thread(target=self.answer).start()

            def answer(self):
                for n in range(50):
                    for sender, base in self.open:
                        sender.send(number(base + n))
                for sender, _ in self.open:
                    sender.send(flags=FINAL)
        """
    )
    requests = [streams.submit({"IN": np.array([base], np.float32)}) for base in (0, 1000, 2000)]
    for request, base in zip(requests, (0, 1000, 2000), strict=True):
        assert streams.numbers(request) == [base + n for n in range(50)]
    assert streams.model.in_flight_count == 0


def test_many_threads_send_at_once(executing):
    streams = executing(
        """
        def run(sender, base):
            for n in range(400):
                sender.send(number(base + n))
            sender.send(flags=FINAL)
        for request in requests:
            threading.Thread(target=run, args=(request.get_response_sender(), value(request)[0])).start()
        """
    )
    bases = [1000 * index for index in range(8)]
    requests = [streams.submit({"IN": np.array([base], np.float32)}) for base in bases]
    for request, base in zip(requests, bases, strict=True):
        assert streams.numbers(request) == [base + n for n in range(400)]


def test_coroutines_of_several_batches_run_side_by_side(start):
    streams = start(
        """
        class TritonPythonModel:
            def initialize(self, args):
                self.waiting = []

            async def execute(self, requests):
                for request in requests:
                    sender = request.get_response_sender()
                    sender.send(number(0))
                    event = asyncio.Event()
                    self.waiting.append(event)
                    if len(self.waiting) == 3:
                        for each in self.waiting:
                            each.set()
                    await event.wait()
                    sender.send(number(1), FINAL)
        """
    )
    requests = [streams.submit({"IN": FLOATS}) for _ in range(3)]
    assert [streams.numbers(request) for request in requests] == [[0.0, 1.0]] * 3


def test_model_may_write_to_its_arrays_after_send(executing):
    streams = executing(
        """
        sender = requests[0].get_response_sender()
        array = np.zeros(8, np.float32)
        for n in range(200):
            array[:] = n
            sender.send(answer(OUT=array))
        sender.send(flags=FINAL)
        """
    )
    received = streams.wait(streams.submit({"IN": FLOATS}))
    assert [output_arrays(each)["OUT"].tolist() for each in received[:-1]] == [[float(n)] * 8 for n in range(200)]


def test_strings_parameters_and_errors_keep_their_places(executing):
    streams = executing(
        """
        sender = requests[0].get_response_sender()
        for n in range(30):
            if n % 3 == 0:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(f"e{n}", pb_utils.TritonError.NOT_FOUND)))
            else:
                text = pb_utils.Tensor("OUT", np.array([f"text {n}", "x" * n], object))
                sender.send(pb_utils.InferenceResponse([text], parameters={"n": n} if n % 2 else None))
        sender.send(flags=FINAL)
        """,  # noqa: E501
        decoupled_config("TYPE_STRING"),
    )
    received = streams.wait(streams.submit({"IN": strings(b"")}))[:-1]
    for n, response in enumerate(received):
        if n % 3 == 0:
            assert response.error is not None
            assert (response.error.message, response.error.code) == (f"e{n}", ErrorCode.NOT_FOUND)
            assert not response.final
        else:
            assert output_arrays(response)["OUT"].tolist() == [f"text {n}".encode(), b"x" * n]
            assert dict(response.parameters) == ({"n": n} if n % 2 else {})


def test_outputs_vary_in_shape_but_not_in_datatype(executing):
    streams = executing(
        """
        sender = requests[0].get_response_sender()
        sender.send(pb_utils.InferenceResponse([]))
        sender.send(answer(OUT=np.ones((2, 3), np.float32), NOWHERE=np.ones(1)))
        sender.send(answer(OUT=np.ones(1, np.int64)), FINAL)
        """
    )
    nothing, matrix, integers = streams.wait(streams.submit({"IN": FLOATS}))
    assert nothing.header.outputs == ()
    assert output_arrays(matrix)["OUT"].shape == (2, 3)
    # Triton: another datatype is passed on as well.
    assert output_arrays(integers)["OUT"].dtype == np.int64


# --- large responses ------------------------------------------------------------------------------------------------


def test_large_responses_share_a_little_memory(executing):
    """24 MiB pass through 4 MiB, although all come from one `execute`."""
    streams = executing(
        """
        sender = requests[0].get_response_sender()
        for n in range(24):
            sender.send(answer(OUT=np.full(1 << 18, n, np.float32)))
            sender.send(number(-n))
        sender.send(flags=FINAL)
        """,
        backend_config={"transport-max-byte-size": str(4 << 20)},
    )
    means = []
    streams.look = lambda response: means.extend(array.mean() for array in output_arrays(response).values())
    streams.wait(streams.submit({"IN": FLOATS}))
    assert means == [float(each) for n in range(24) for each in (n, -n)]


def test_response_larger_than_memory_is_refused_in_send(executing):
    streams = executing(
        """
        sender = requests[0].get_response_sender()
        sender.send(number(1))
        try:
            sender.send(answer(OUT=np.zeros(1 << 20, np.float32)))
        except pb_utils.TritonModelException as error:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))), FINAL)
        """,
        backend_config={"transport-max-byte-size": str(1 << 20)},
    )
    first, refused = streams.wait(streams.submit({"IN": FLOATS}))
    assert output_arrays(first)["OUT"].tolist() == [1.0]
    assert error_of(refused) == (
        "Unable to send response. 4194304 bytes of tensors do not fit into the shared memory between server and "
        "worker, of which 1048576 bytes are left (--backend-config=python,transport-max-byte-size)"
    )


# --- misuse, in Triton's words --------------------------------------------------------------------------------------


def test_misuse_of_senders(executing):
    streams = executing(
        """
        def refused(*arguments):
            try:
                sender.send(*arguments)
            except (pb_utils.TritonModelException, TypeError) as error:
                said.append(f"{type(error).__name__}: {error}")
        said = []
        sender = requests[0].get_response_sender()
        other = requests[0].get_response_sender()
        refused()
        refused(number(1), 2)
        refused("text")
        strange = np.empty(1, object)
        strange[0] = "\\ud800"
        refused(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", strange)]))
        text = pb_utils.Tensor("OUT", np.array(["|".join(said)], object))
        sender.send(pb_utils.InferenceResponse([text]))
        sender.send(flags=FINAL)
        said.clear()
        refused(number(1))
        refused(None, FINAL)
        assert said == ["TritonModelException: Unable to send response. Response sender has been closed."] * 2, said
        """,
        decoupled_config("TYPE_STRING"),
    )
    said, _ = streams.wait(streams.submit({"IN": strings(b"")}))
    assert output_arrays(said)["OUT"][0].decode().split("|") == [
        "TritonModelException: Inference Response object must be provided when the response flags is set to zero.",
        "TritonModelException: Unable to send response. Unsupported flag provided.",
        "TypeError: send: expected response to be an InferenceResponse, found str",
        "TritonModelException: output 'OUT' of model 'm' has half of a surrogate pair (U+D800, at character 0 of "
        "element 0), which UTF-8 does not have; encode the text with text.encode('utf-8', 'replace')",
    ]


def test_execute_must_return_none(executing):
    streams = executing("return [number(1) for request in requests]")
    (failed,) = streams.wait(streams.submit({"IN": FLOATS}))
    assert error_of(failed) == (
        "Failed to process the request(s) for model 'm_0_0', message: Python model 'm_0_0' is using the decoupled "
        "mode and the execute function must return None."
    )


@pytest.mark.parametrize("opening", ["def", "async def"])
def test_exception_ends_open_requests_but_not_next_batch(start, opening):
    streams = start(
        f"""
        class TritonPythonModel:
            {opening} execute(self, requests):
                sender = requests[0].get_response_sender()
                sender.send(number(1))
                if value(requests[0])[0] < 0:
                    raise ValueError("boom")
                sender.send(number(2), FINAL)
        """
    )
    first, failed = streams.wait(streams.submit({"IN": -FLOATS}))
    assert output_arrays(first)["OUT"].tolist() == [1.0]
    message = error_of(failed)
    assert message.startswith("Failed to process the request(s) for model 'm_0_0', message: ValueError: boom")
    assert "model.py" in message
    assert streams.numbers(streams.submit({"IN": FLOATS})) == [1.0, 2.0]


def test_an_exception_leaves_other_requests_alone(start):
    streams = start(
        """
        class TritonPythonModel:
            def execute(self, requests):
                sender = requests[0].get_response_sender()
                if value(requests[0])[0] < 0:
                    self.sender.send(number(2))
                    raise ValueError("boom")
                self.sender = sender
                self.sender.send(number(1))
                threading.Timer(0.3, lambda: sender.send(number(3), FINAL)).start()
        """
    )
    open_one = streams.submit({"IN": FLOATS})
    streams.wait(open_one, 1)
    assert "boom" in error_of(streams.wait(streams.submit({"IN": -FLOATS}))[-1])
    assert streams.numbers(open_one) == [1.0, 2.0, 3.0]


def test_an_exception_closes_the_senders_of_its_batch(start):
    streams = start(
        """
        class TritonPythonModel:
            kept = None

            def execute(self, requests):
                if self.kept is None:
                    self.kept = requests[0].get_response_sender()
                    raise ValueError("boom")
                try:
                    self.kept.send(number(1))
                except pb_utils.TritonModelException as error:
                    error = pb_utils.TritonError(str(error))
                    requests[0].get_response_sender().send(pb_utils.InferenceResponse(error=error), FINAL)
        """
    )
    assert "boom" in error_of(streams.wait(streams.submit({"IN": FLOATS}))[-1])
    (second,) = streams.wait(streams.submit({"IN": FLOATS}))
    assert error_of(second) == "Unable to send response. Response sender has been closed."


@pytest.mark.parametrize(
    "statements",
    [
        "",
        "requests[0].get_response_sender()",
        "requests[0].get_response_sender().send(number(1))",
        "ring = [requests[0].get_response_sender()]; ring.append(ring); del ring; gc.collect()",
    ],
)
def test_request_without_sender_gets_error(executing, statements):
    streams = executing(f"{statements or 'pass'}")
    last = streams.wait(streams.submit({"IN": FLOATS}))[-1]
    assert error_of(last) == (
        "the model released the response sender of this request without sending a final response"
    )


# --- clients that are gone or slow ----------------------------------------------------------------------------------


def test_cancellation_is_seen_by_own_request_and_sender(start):
    streams = start(
        """
        class TritonPythonModel:
            open = []

            def execute(self, requests):
                self.open += requests
                if len(self.open) == 3:
                    threading.Thread(target=self.answer).start()

            def answer(self):
                first, second, third = self.open
                for request in self.open:
                    request.get_response_sender().send(number(0))
                while not (second.is_cancelled() and second.get_response_sender().is_cancelled()):
                    time.sleep(0.001)
                for request in self.open:
                    request.get_response_sender().send(number(request.is_cancelled()))
                    request.get_response_sender().send(flags=FINAL)
                    assert request.is_cancelled() == (request is second)
        """
    )
    requests = [streams.submit({"IN": FLOATS}) for _ in range(3)]
    for request in requests:
        streams.wait(request, 1)
    streams.on_loop(streams.model.cancel, requests[1])
    # What is sent to a client that is gone goes nowhere, but the completion comes.
    assert [streams.numbers(request) for request in requests] == [[0.0, 0.0], [0.0], [0.0, 0.0]]


def test_cancellation_while_execute_runs(executing):
    streams = executing(
        """
        sender = requests[0].get_response_sender()
        sender.send(number(1))
        while not requests[0].is_cancelled():
            time.sleep(0.001)
        sender.send(flags=FINAL)
        """
    )
    request = streams.submit({"IN": FLOATS})
    streams.wait(request, 1)
    streams.on_loop(streams.model.cancel, request)
    assert streams.numbers(request) == [1.0]


def test_model_waits_for_slow_client_and_serves_others(start, tmp_path):
    sent = tmp_path / "sent"
    sent.write_bytes(b"")
    streams = start(
        f"""
        class TritonPythonModel:
            def execute(self, requests):
                for request in requests:
                    threading.Thread(target=self.answer, args=(request,)).start()

            def answer(self, request):
                sender = request.get_response_sender()
                with open({str(sent)!r}, "ab", buffering=0) as log:
                    for n in range(int(value(request)[0])):
                        if sender.is_cancelled():
                            break
                        sender.send(number(n))
                        if n:
                            log.write(b".")
                sender.send(flags=FINAL)
        """
    )
    slow = streams.submit({"IN": np.array([1000000], np.float32)})
    streams.wait(slow, 1)
    slow.is_paused = True
    before = -1
    while before != (before := sent.stat().st_size) or before != len(streams.responses(slow)) - 1:
        assert streams.numbers(streams.submit({"IN": np.array([1], np.float32)})) == [0.0]
        threading.Event().wait(0.05)
    assert before < 1000000 - 1
    slow.is_paused = False
    streams.wait(slow, before + 100)
    # A client that leaves frees a model that waits for it.
    slow.is_paused = True
    streams.on_loop(streams.model.cancel, slow)
    assert streams.wait(slow)[-1].empty_final


def test_slots_are_used_again(executing):
    streams = executing(
        "for request in requests: request.get_response_sender().send(number(request.is_cancelled()), 1)"
    )
    for round_number in range(50):
        requests = [streams.submit({"IN": FLOATS}) for _ in range(8)]
        assert [streams.numbers(request) for request in requests] == [[0.0]] * 8, round_number


# --- death and unloading --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_executing", [True, False])
def test_worker_that_dies_answers_all_that_is_open(start, is_executing):
    streams = start(
        f"""
        class TritonPythonModel:
            open = []

            def execute(self, requests):
                self.open += [request.get_response_sender() for request in requests]
                for sender in self.open:
                    sender.send(number(1))
                if value(requests[0])[0] == 2:
                    if {is_executing}:
                        self.die()
                    threading.Thread(target=self.die).start()
                if value(requests[0])[0] == 3:
                    self.open[-1].send(flags=FINAL)

            def die(self):
                time.sleep(0.05)
                os.kill(os.getpid(), signal.SIGSEGV)
        """
    )
    requests = [streams.submit({"IN": np.array([n], np.float32)}) for n in (0, 1, 2)]
    for request in requests:
        *some, last = streams.wait(request)
        assert some
        assert last.error is not None
        assert last.error.code is ErrorCode.UNAVAILABLE
        assert error_of(last) == (
            "the worker of instance 'm_0_0' was killed by SIGSEGV while it executed this request"
        )
    while streams.instance.health:
        threading.Event().wait(0.01)
    assert streams.numbers(streams.submit({"IN": np.array([3], np.float32)})) == [1.0]
    assert streams.model.in_flight_count == 0


def test_unloading_waits_for_open_senders_and_then_finalizes(start, tmp_path):
    mark = tmp_path / "finalized"
    streams = start(
        f"""
        class TritonPythonModel:
            def execute(self, requests):
                sender = requests[0].get_response_sender()
                sender.send(number(1))
                def end():
                    time.sleep(0.3)
                    sender.send(number(2), FINAL)
                threading.Thread(target=end).start()

            def finalize(self):
                open({str(mark)!r}, "w").close()
        """
    )
    request = streams.submit({"IN": FLOATS})
    streams.wait(request, 1)
    assert streams.model.stop(60.0)
    assert streams.numbers(request) == [1.0, 2.0]
    assert mark.exists()


def test_unloading_gives_up_senders_that_stay_open(start):
    streams = start(
        """
        class TritonPythonModel:
            kept = []
            def execute(self, requests):
                self.kept += [request.get_response_sender() for request in requests]
                self.kept[-1].send(number(os.getpid()))
        """
    )
    request = streams.submit({"IN": FLOATS})
    pid = int(output_arrays(streams.wait(request, 1)[0])["OUT"][0])
    assert not streams.model.stop(0.1)
    assert "stopped before" in error_of(streams.wait(request)[-1])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_large_request_is_handed_over_beside_open_ones(executing):
    streams = executing(
        """
        for request in requests:
            def run(sender, total):
                for n in range(200):
                    sender.send(number(n))
                    time.sleep(0.0005)
                sender.send(number(total), FINAL)
            threading.Thread(target=run, args=(request.get_response_sender(), value(request).sum())).start()
        """
    )
    requests = [streams.submit({"IN": np.ones(size, np.float32)}) for size in (1, 1 << 19, 2, 1 << 20)]
    for request, total in zip(requests, (1, 1 << 19, 2, 1 << 20), strict=True):
        assert streams.numbers(request) == [*range(200), total]
