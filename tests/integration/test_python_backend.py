"""Python models in real worker processes: what they answer, how they fail, how they die and come back."""

import contextlib
import json
import logging
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import psutil
import pytest

from naiad.backend.api import Instance, InstanceDiedError, InstanceSpec, InstanceState
from naiad.backend.python.backend import PythonBackend
from naiad.backend.workers.worker_instance import WorkerInstance
from naiad.config.autofill import merge_auto_completed
from naiad.config.forms.pbtxt import text_format as pbtxt
from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.batch import Batch, SequenceEnd
from naiad.core.datatype import DataType
from naiad.core.errors import ErrorCode, InferError
from naiad.core.request import RequestHeader
from naiad.core.tensor import Array, TensorSpec
from support.backend_parts import (
    execute,
    infer,
    load_model,
    make_context,
    make_header,
    make_request,
    output_arrays,
    strings,
)

PRELUDE = """
import ctypes, json, logging, os, signal, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils


def answer(**arrays):
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in arrays.items()])


def value(request, name="IN"):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()

"""

MakeInstance = Callable[..., WorkerInstance]


class Models:
    """Writes models and starts instances of them; ends all when the test ends."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._instances: list[WorkerInstance] = []

    def config(
        self,
        datatype: str = "TYPE_FP32",
        dims: tuple[int, ...] = (-1,),
        parameters: Mapping[str, str] | None = None,
    ) -> ModelConfig:
        made = ModelConfig(name="m", backend="python")
        made.input.add(name="IN", data_type=datatype, dims=dims)
        made.output.add(name="OUT", data_type=datatype, dims=dims)
        for name, text in (parameters or {}).items():
            made.parameters[name].string_value = text
        return made

    def write(self, source: str) -> Path:
        directory = self._root / "m"
        (directory / "1").mkdir(parents=True, exist_ok=True)
        (directory / "1" / "model.py").write_text(PRELUDE + textwrap.dedent(source))
        return directory

    def start(
        self,
        source: str,
        config: ModelConfig | None = None,
        *,
        backend_config: Mapping[str, str] | None = None,
        index: int = 0,
        **parameters: str,
    ) -> WorkerInstance:
        config = config or self.config(parameters=parameters)
        context = make_context(config, self.write(source), backend_config=backend_config)
        model = PythonBackend().load(context)
        instance = model.create_instance(InstanceSpec(f"m_0_{index}", index, "KIND_CPU"))
        return self.adopt(instance)

    def adopt(self, instance: Instance) -> WorkerInstance:
        """See to it that an instance is closed."""
        assert isinstance(instance, WorkerInstance)
        self._instances.append(instance)
        return instance

    def executing(self, statements: str, config: ModelConfig | None = None, **parameters: str) -> WorkerInstance:
        """Start a model whose `execute(self, requests)` consists of these statements."""
        body = textwrap.indent(textwrap.dedent(statements), " " * 8)
        return self.start(f"class TritonPythonModel:\n    def execute(self, requests):\n{body}", config, **parameters)

    def close(self) -> None:
        for instance in self._instances:
            instance.close()


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Models]:
    made = Models(tmp_path)
    yield made
    made.close()


FLOATS = np.arange(4, dtype=np.float32)


def ask(instance: WorkerInstance, array: Array = FLOATS) -> Array:
    return infer(instance, {"IN": array})["OUT"]


def failure(instance: WorkerInstance, array: Array = FLOATS) -> InferError:
    with pytest.raises(InferError) as caught:
        ask(instance, array)
    return caught.value


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "naiad/worker" in command_of(child)]


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has just ended
        return ""


def shared_files(process: psutil.Process) -> set[str]:
    """Return the files of /dev/shm that a process has open or mapped, deleted ones too.

    What lies in the directory says nothing: other processes of the machine come and go there.
    """
    found = {region.path for region in process.memory_maps(grouped=False)}
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile, as that of this listing is
            found.add(os.readlink(descriptor))
    return {path for path in found if path.startswith("/dev/shm")}


# --- answers ------------------------------------------------------------------------------------------------------


def test_requests_of_a_batch_are_answered_each(models):
    instance = models.executing("return [answer(OUT=value(request) * 2) for request in requests]")
    for count in (1, 3, 100, 3000):
        arrays = [np.full(2, index, np.float32) for index in range(count)]
        header = make_header({"IN": arrays[0]})
        responses = execute(instance, [make_request({"IN": array}, header=header) for array in arrays])
        assert [output_arrays(response)["OUT"].tolist() for response in responses] == [
            [i * 2.0] * 2 for i in range(count)
        ]


NUMERIC = [datatype for datatype in DataType if datatype not in (DataType.BYTES, DataType.BF16)]


@pytest.mark.parametrize("shape", [(3,), (0,), (2, 3), ()])
def test_every_datatype(models, shape):
    config = ModelConfig(name="m", backend="python")
    for datatype in NUMERIC:
        config.input.add(name=f"IN_{datatype.value}", data_type=datatype.config_name, dims=shape)
        config.output.add(name=f"OUT_{datatype.value}", data_type=datatype.config_name, dims=shape)
    source = """
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(t.name().replace("IN_", "OUT_"), t.as_numpy()[::-1].copy() if t.as_numpy().ndim else
                 t.as_numpy()) for t in request.inputs()]
            )
            for request in requests
        ]
    """
    instance = models.executing(source, config)
    count = int(np.prod(shape))
    arrays = {f"IN_{d.value}": (np.arange(count) % 2).astype(d.numpy).reshape(shape) for d in NUMERIC}
    for name, array in infer(instance, arrays).items():
        sent = arrays[name.replace("OUT_", "IN_")]
        assert array.dtype == sent.dtype
        assert array.tolist() == (sent[::-1] if sent.ndim else sent).tolist()


def test_strings(models):
    instance = models.executing(
        """
        kinds = {
            b"object": lambda t: np.array(["é", b"\\xff", 5], object),
            b"bytes": lambda t: np.array([b"a", b"bc"]),
            b"text": lambda t: np.array(["ü"]),
            b"same": lambda t: t,
            b"none": lambda t: np.zeros(0, object),
        }
        return [answer(OUT=kinds[value(request)[0]](value(request))) for request in requests]
        """,
        models.config("TYPE_STRING"),
    )
    for kind, expected in {
        b"object": ["é".encode(), b"\xff", b"5"],
        b"bytes": [b"a", b"bc"],
        b"text": ["ü".encode()],
        b"same": [b"same", b"", b"nul\0inside", b"x" * 5000],
        b"none": [],
    }.items():
        array = strings(kind, b"", b"nul\0inside", b"x" * 5000)
        assert ask(instance, array).tolist() == expected


def test_bf16_through_dlpack(models):
    instance = models.executing(
        """
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", request.inputs()[0])])
                for request in requests]
        """,
        models.config("TYPE_BF16"),
    )
    array = np.array([1.0, -2.5], ml_dtypes.bfloat16)
    assert ask(instance, array).tolist() == [1.0, -2.5]


def test_noncontiguous_layouts_and_inputs_that_are_written(models):
    instance = models.executing(
        """
        array = value(requests[0])
        array *= 2
        return [answer(OUT=array.reshape(2, 2).T.reshape(-1)[::-1])]
        """
    )
    assert ask(instance).tolist() == [6.0, 2.0, 4.0, 0.0]


def test_request_and_response_carry_the_rest(models):
    config = models.config("TYPE_STRING")
    instance = models.executing(
        """
        q = requests[0]
        found = [q.request_id(), q.correlation_id(), q.flags(), q.timeout(), json.loads(q.parameters()),
                sorted(q.requested_output_names()), q.is_cancelled()]
        found.append(pb_utils.get_input_tensor_by_name(q, "ABSENT") is None)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([json.dumps(found)], object))],
                                           parameters={"said": "yes", "n": 3})]
        """,
        config,
    )
    header = RequestHeader(
        model_name="m",
        inputs=[TensorSpec("IN", DataType.BYTES, (1,))],
        parameters={"k": 1.5},
        timeout_us=9,
        sequence_id=77,
        sequence_start=True,
    )
    request = make_request({"IN": strings(b"")}, header=header)
    request.id = "id-1"
    (response,) = execute(instance, [request])
    assert output_arrays(response)["OUT"][0] == b'["id-1", 77, 1, 9, {"k": 1.5}, ["OUT"], false, true]'
    assert dict(response.parameters) == {"said": "yes", "n": 3}


def test_outputs_that_are_not_wanted_are_dropped(models):
    config = models.config()
    config.output.add(name="OTHER", data_type="TYPE_FP32", dims=[-1])
    instance = models.executing(
        "return [answer(OTHER=value(r), NOWHERE=value(r), OUT=value(r)) for r in requests]", config
    )
    assert list(infer(instance, {"IN": FLOATS})) == ["OTHER", "OUT"]
    assert list(infer(instance, {"IN": FLOATS}, ["OUT"])) == ["OUT"]


def test_initialize_gets_strings_and_finalize_is_called(models, tmp_path):
    mark = tmp_path / "finalized"
    instance = models.start(
        f"""
        class TritonPythonModel:
            def initialize(self, args):
                assert all(isinstance(value, str) for value in args.values()), args
                config = json.loads(args.pop("model_config"))
                assert pb_utils.get_input_config_by_name(config, "IN")["data_type"] == "TYPE_STRING"
                args["dir"] = pb_utils.get_model_dir()
                args["name"] = __name__
                self.args = json.dumps(args)

            def execute(self, requests):
                return [answer(OUT=np.array([self.args], object)) for request in requests]

            def finalize(self):
                open({str(mark)!r}, "w").close()
        """,
        models.config("TYPE_STRING"),
    )
    directory = tmp_path / "m"
    assert json.loads(ask(instance, strings(b""))[0]) == {
        "model_instance_kind": "CPU",
        "model_instance_name": "m_0_0",
        "model_instance_device_id": "0",
        "model_repository": str(directory),
        "model_version": "1",
        "model_name": "m",
        "dir": str(directory / "1"),
        "name": "1.model",
    }
    assert not mark.exists()
    instance.close()
    assert mark.exists()


def test_models_import_what_lies_beside_them(models, tmp_path):
    directory = models.write("")
    (directory / "beside_the_version.py").write_text("A = 1")
    (directory / "1" / "beside_the_model.py").write_text("B = 2")
    (directory / "1" / "relative.py").write_text("C = 4")
    instance = models.start(
        """
        import beside_the_version, beside_the_model
        from .relative import C
        class TritonPythonModel:
            def execute(self, requests):
                sum = beside_the_version.A + beside_the_model.B + C
                return [answer(OUT=np.full(1, sum, np.float32)) for request in requests]
        """
    )
    assert ask(instance).tolist() == [7.0]


def test_response_senders_and_coroutines(models):
    instance = models.executing(
        """
        for request in requests:
            request.get_response_sender().send(answer(OUT=value(request) + 1), flags=1)
        """
    )
    assert ask(instance).tolist() == [1.0, 2.0, 3.0, 4.0]
    instance = models.start(
        """
        import asyncio
        class TritonPythonModel:
            async def execute(self, requests):
                await asyncio.sleep(0)
                return [answer(OUT=value(request) + 2) for request in requests]
        """
    )
    assert ask(instance).tolist() == [2.0, 3.0, 4.0, 5.0]


def test_a_sender_answers_after_execute_has_returned(models):
    instance = models.executing(
        """
        sender = requests[0].get_response_sender()
        sent = answer(OUT=value(requests[0]) + 1)
        threading.Timer(0.05, sender.send, (sent, 1)).start()
        requests[1].get_response_sender()
        return [None, None, answer(OUT=value(requests[2]))]
        """
    )
    late, lost, returned = execute(instance, [make_request({"IN": FLOATS}) for _ in range(3)])
    assert output_arrays(late)["OUT"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert lost.error is not None
    assert "the model released the response sender of this request" in lost.error.message
    assert output_arrays(returned)["OUT"].tolist() == FLOATS.tolist()


LATE_TASKS = """
        import asyncio
        class TritonPythonModel:
            async def execute(self, requests):
                {keep}
                for request in requests:
                    asyncio.create_task(self.later({argument}))
                {result}
            async def later(self, {parameters}):
                await asyncio.sleep(0.05)
                {send}
        """


@pytest.mark.parametrize(
    "parts",
    [
        {
            "argument": "request.get_response_sender(), answer(OUT=value(request) + 1)",
            "parameters": "sender, response",
            "send": "sender.send(response, flags=1)",
            "result": "return None",
        },
        {
            "argument": "request",
            "parameters": "request",
            "send": "request.get_response_sender().send(answer(OUT=value(request) + 1), flags=1)",
            "result": "return [None] * len(requests)",
        },
    ],
    ids=["sender", "request"],
)
def test_tasks_answer_after_async_execute_has_returned(models, parts):
    instance = models.start(LATE_TASKS.format(keep="pass", **parts))
    for _ in range(2):
        responses = execute(instance, [make_request({"IN": FLOATS}) for _ in range(3)])
        assert [output_arrays(each)["OUT"].tolist() for each in responses] == [[1.0, 2.0, 3.0, 4.0]] * 3


def test_tasks_go_on_between_batches(models):
    instance = models.start(
        """
        import asyncio
        class TritonPythonModel:
            count = 0
            ticker = None
            async def tick(self):
                while True:
                    self.count += 1
                    await asyncio.sleep(0.001)
            async def execute(self, requests):
                self.ticker = self.ticker or asyncio.create_task(self.tick())
                return [answer(OUT=np.full(4, self.count, np.float32)) for request in requests]
        """
    )
    assert ask(instance)[0] == 0
    wait_until(lambda: ask(instance)[0] > 5)


@pytest.mark.parametrize("definition", ["def", "async def"])
def test_a_response_before_an_exception_arrives(models, definition):
    instance = models.start(
        f"""
        class TritonPythonModel:
            {definition} execute(self, requests):
                requests[1].get_response_sender().send(answer(OUT=value(requests[1]) + 1), flags=1)
                raise ValueError("too late")
        """
    )
    failed, sent = execute(instance, [make_request({"IN": FLOATS}) for _ in range(2)])
    assert failed.error is not None
    assert failed.error.message.startswith("Failed to process the request(s) for model 'm_0_0', message: ValueError")
    assert output_arrays(sent)["OUT"].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_an_error_beside_strings_reaches_its_own_request(models):
    instance = models.executing(
        """
        wrong = pb_utils.InferenceResponse(error=pb_utils.TritonError("not this one"))
        return [answer(OUT=value(requests[0])), wrong, answer(OUT=value(requests[2]))]
        """,
        models.config("TYPE_STRING"),
    )
    first, second, third = execute(instance, [make_request({"IN": strings(b"a", b"b")}) for _ in range(3)])
    assert second.error is not None
    assert second.error.message == "not this one"
    for response in (first, third):
        assert output_arrays(response)["OUT"].tolist() == [b"a", b"b"]


def test_cancellation_is_visible_while_the_model_executes(models, tmp_path):
    begun = tmp_path / "begun"
    instance = models.executing(
        f"""
        open({str(begun)!r}, "w").close()
        deadline = time.monotonic() + 60
        while not requests[1].is_cancelled() and time.monotonic() < deadline:
            time.sleep(0.005)
        seen = [float(request.is_cancelled()) for request in requests]
        return [answer(OUT=np.array([each], np.float32)) for each in seen]
        """
    )
    requests = [make_request({"IN": FLOATS}) for _ in range(2)]

    def cancel() -> None:
        wait_until(begun.exists)
        requests[1].cancelled = True
        instance.mark(requests[1])

    thread = threading.Thread(target=cancel)
    thread.start()
    responses = execute(instance, requests)
    thread.join()
    assert [output_arrays(response)["OUT"].tolist() for response in responses] == [[0.0], [1.0]]


# --- large tensors --------------------------------------------------------------------------------------------------

ECHO = "return [answer(OUT=value(request)) for request in requests]"


@pytest.mark.parametrize("size", [12_287, 12_288, 12_289, 20_000, 1 << 20, 1 << 24])
def test_tensors_of_every_size(models, size):
    instance = models.executing(ECHO)
    for seed in range(3):
        array = np.random.default_rng(seed).random(size, np.float32)
        assert np.array_equal(ask(instance, array), array)


def test_answers_stay_valid_while_others_follow(models):
    instance = models.executing(ECHO)
    arrays = [np.full(1 << 18, index, np.float32) for index in range(5)]
    answers = [ask(instance, array) for array in arrays]
    assert all(np.array_equal(a, b) for a, b in zip(answers, arrays, strict=True))


def test_inputs_that_a_model_keeps_stay_valid(models):
    instance = models.start(
        """
        class TritonPythonModel:
            def initialize(self, args):
                self.kept = []
            def execute(self, requests):
                self.kept += [value(request) for request in requests]
                return [answer(OUT=np.array([array[0] for array in self.kept], np.float32)) for _ in requests]
        """
    )
    for index in range(5):
        array = np.full(1 << 18, index, np.float32)
        assert ask(instance, array).tolist() == [float(each) for each in range(index + 1)]


def test_batch_that_follows_another_message_is_executed(models):
    # A worker that has shared memory looks every 10 s whether to give some up; here it would wait for longer.
    source = """
    sys.modules["naiad.worker.loop"].IDLE_S = 600.0
    return [answer(OUT=value(request)) for request in requests]
    """
    instance = models.executing(source)
    ask(instance, np.zeros(100_000, np.float32))
    (worker,) = workers()
    worker.suspend()
    instance.end_sequences([SequenceEnd(7, "expired")])
    instance.begin(Batch([make_request({"IN": FLOATS})], 1))
    worker.resume()
    assert select.select([instance.fileno()], [], [], 60)[0], "the worker waits for what it has already read"
    (response,) = instance.finish()
    assert output_arrays(response)["OUT"].tolist() == FLOATS.tolist()


def test_memory_limit_is_named_in_refusal(models):
    instance = models.start(
        f"class TritonPythonModel:\n    def execute(self, requests):\n        {ECHO}",
        backend_config={"transport-max-byte-size": str(1 << 20)},
    )
    assert len(ask(instance, np.zeros(1 << 16, np.float32))) == 1 << 16
    for size in (1 << 18, 1 << 19):  # the answer does not fit beside the question; the question does not fit
        error = failure(instance, np.zeros(size, np.float32))
        assert error.code is ErrorCode.UNAVAILABLE
        assert f"{size * 4} bytes of tensors do not fit" in error.message
        assert "capped at 1048576 bytes (--backend-config=python,transport-max-byte-size)" in error.message
    assert len(ask(instance, np.zeros(1 << 16, np.float32))) == 1 << 16


def test_dev_shm_plays_no_part(models):
    server = psutil.Process()
    before = shared_files(server)
    instance = models.executing(ECHO)
    # A view on what was answered keeps the memory that it came in.
    answered = ask(instance, np.zeros(1 << 22, np.float32))
    (worker,) = workers()
    assert shared_files(worker) == set()
    assert shared_files(server) <= before
    assert len(answered) == 1 << 22


# --- failures -------------------------------------------------------------------------------------------------------


def test_an_exception_fails_the_batch_with_its_place(models):
    instance = models.executing("raise ValueError('no such animal')")
    error = failure(instance)
    assert error.code is ErrorCode.INTERNAL
    assert re.fullmatch(
        r"Failed to process the request\(s\) for model 'm_0_0', message: ValueError: no such animal\n\n"
        r"At:\n  /.*/m/1/model.py\(\d+\): execute\n",
        error.message,
    )
    assert "Traceback" in error.detail
    assert "raise ValueError('no such animal')" in error.detail
    assert "naiad" not in error.detail.replace("naiad-", "")
    assert not instance.health


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("raise pb_utils.TritonModelException('mine')", "TritonModelException: mine"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: "),
        ("return None", "Expected a list in the execute return"),
        ("return []", "Number of InferenceResponse objects do not match"),
        ("return [1]", "Expected an 'InferenceResponse' object"),
        ("return [answer(OUT=np.zeros(1, complex))]", "NumPy dtype is not supported"),
    ],
)
def test_the_worker_survives_what_execute_does_wrong(models, statement, said):
    instance = models.executing(f"if value(requests[0])[0] < 0: {statement}\n{ECHO}")
    (pid,) = [worker.pid for worker in workers()]
    assert said in failure(instance, np.array([-1], np.float32)).message
    assert ask(instance).tolist() == FLOATS.tolist()
    assert [worker.pid for worker in workers()] == [pid]


def test_one_request_of_a_batch_can_fail(models):
    instance = models.executing(
        """
        error = pb_utils.InferenceResponse(error=pb_utils.TritonError("negative", pb_utils.TritonError.INVALID_ARG))
        return [error if value(request)[0] < 0 else answer(OUT=value(request)) for request in requests]
        """
    )
    good, bad = np.array([1], np.float32), np.array([-1], np.float32)
    first, second, third = execute(instance, [make_request({"IN": array}) for array in (good, bad, good)])
    assert second.error is not None
    assert (second.error.code, second.error.message) == (ErrorCode.INVALID_ARG, "negative")
    assert output_arrays(first)["OUT"].tolist() == output_arrays(third)["OUT"].tolist() == [1.0]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def nothing(): pass", "model.py has no class TritonPythonModel"),
        ("class TritonPythonModel: pass", "has no method execute"),
        ("import no_such_module", r"ModuleNotFoundError: No module named 'no_such_module'\n\nAt:\n  /.*model.py"),
        ("this is no python", "SyntaxError: invalid syntax"),
        (
            """
            class TritonPythonModel:
                def initialize(self, args):
                    raise RuntimeError("weights are missing")
                def execute(self, requests): ...
            """,
            r"RuntimeError: weights are missing\n\nAt:\n  /.*model.py\(\d+\): initialize\n",
        ),
        (
            """
            class TritonPythonModel:
                def initialize(self, args):
                    os._exit(7)
                def execute(self, requests): ...
            """,
            "the worker exited with code 7 while it was to initialize",
        ),
        (
            """
            class TritonPythonModel:
                def initialize(self, args):
                    time.sleep(100)
                def execute(self, requests): ...
            """,
            "took more than 0.2 s to initialize",
        ),
    ],
)
def test_models_that_do_not_load_say_why(models, source, said):
    with pytest.raises(InferError, match=said) as caught:
        models.start(source, initialize_timeout_s="0.2" if "sleep(100)" in source else "60")
    assert caught.value.message.startswith("instance 'm_0_0': ")
    assert not workers()


# --- auto-complete --------------------------------------------------------------------------------------------------

COMPLETING = """
class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]})
        config.add_output({"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]})
        config.set_max_batch_size(4)
        config.set_dynamic_batching()
        return config
    def execute(self, requests): ...
"""


def complete(models: Models, source: str, config: ModelConfig | None = None) -> ModelConfig:
    config = config or ModelConfig(name="m", backend="python")
    context = make_context(config, models.write(source))
    return merge_auto_completed(config, PythonBackend().auto_complete(context))


def test_auto_complete_fills_in_what_is_missing(models):
    made = complete(models, COMPLETING)
    assert made.max_batch_size == 4
    assert made.HasField("dynamic_batching")
    assert [tensor.name for tensor in (*made.input, *made.output)] == ["IN", "OUT"]
    assert not workers()


def test_models_without_auto_complete_start_no_process(models, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    assert complete(models, f"class TritonPythonModel:\n    def execute(self, requests):\n        {ECHO}").name == "m"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (COMPLETING.replace("return config", "pass"), "must return a valid pb.ModelConfig object"),
        (COMPLETING.replace("[-1]", "[3]"), r"the model expects dims \[3\] but the model configuration specifies"),
        (COMPLETING.replace("set_max", "no_such"), "AttributeError"),
        (COMPLETING.replace("return config", "os.kill(os.getpid(), 9)"), "was killed by SIGKILL"),
    ],
)
def test_auto_complete_that_fails_says_why(models, source, said):
    with pytest.raises(InferError, match=said) as caught:
        complete(models, source, models.config())
    assert caught.value.message.startswith("auto_complete_config of model 'm': ")
    assert not workers()


# --- death ----------------------------------------------------------------------------------------------------------

MORTAL = """
class TritonPythonModel:
    def execute(self, requests):
        what = value(requests[0])[0]
        if what == 1: os._exit(1)
        if what == 2: ctypes.string_at(0)
        if what == 3: os.kill(os.getpid(), signal.SIGKILL)
        if what == 4:
            while True: pass
        if what == 5: time.sleep(100)
        return [answer(OUT=np.full(1, os.getpid(), np.float64)) for request in requests]
"""


def mortal(models: Models, **parameters: str) -> WorkerInstance:
    config = models.config(parameters=parameters)
    config.output[0].data_type = "TYPE_FP64"
    return models.start(MORTAL, config)


def command(number: int) -> Array:
    return np.array([number], np.float32)


@pytest.mark.parametrize(
    ("number", "said"), [(1, "exited with code 1"), (2, "was killed by SIGSEGV"), (3, "was killed by SIGKILL")]
)
def test_death_is_reported_and_worker_restarts(models, number, said):
    instance = mortal(models)
    reported: list[str] = []
    instance.health_listener = lambda _, health: reported.append(health)
    before = ask(instance, command(0))[0]
    started = time.monotonic()
    error = failure(instance, command(number))
    assert time.monotonic() - started < 60
    assert isinstance(error, InstanceDiedError)
    assert error.code is ErrorCode.UNAVAILABLE
    assert error.message == f"the worker of instance 'm_0_0' {said} while it executed this request"
    wait_until(lambda: bool(reported))
    wait_until(lambda: not instance.health)
    assert ask(instance, command(0))[0] != before
    assert instance.restart_count == 1
    assert reported == [f"the worker of instance 'm_0_0' {said}; it is being restarted", ""]


@pytest.mark.parametrize("number", [4, 5])
def test_hanging_worker_is_killed_after_its_limit(models, number, caplog):
    instance = mortal(models, execute_timeout_s="1.5")
    error = failure(instance, command(number))
    assert "was killed because a batch took longer than execute_timeout_s, 1.5 s" in error.message
    assert "the stacks of its worker follow" in caplog.text
    wait_until(lambda: not instance.health)
    assert ask(instance, command(0))[0] > 0


def test_idle_worker_that_dies_is_noticed_and_replaced(models):
    instance = mortal(models)
    pid = int(ask(instance, command(0))[0])
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: instance.restart_count == 1 and not instance.health)
    assert ask(instance, command(0))[0] != pid


def test_requests_to_dead_worker_are_refused_with_reason(models):
    instance = mortal(models, restart_limit="1")
    failure(instance, command(2))
    wait_until(lambda: "requests are refused" in instance.health)
    assert "was killed by SIGSEGV; that makes 1 deaths within 60 s: requests are refused, and" in instance.health
    assert instance.health.endswith("it is tried again every 30 s")
    # The lines of the dead worker are closed a little later.
    wait_until(lambda: failure(instance, command(0)).message == instance.health)
    error = failure(instance, command(0))
    assert isinstance(error, InstanceDiedError)
    assert error.code is ErrorCode.UNAVAILABLE
    assert not error.has_begun


def test_repeated_deaths_refuse_until_a_trial(models):
    instance = mortal(models, restart_limit="3", restart_interval_s="1")
    for count in range(3):
        wait_until(lambda count=count: not instance.health and instance.restart_count == count)
        assert instance.state is InstanceState.READY
        failure(instance, command(1))
        assert count == 2 or instance.awaits_restart
    wait_until(lambda: "that makes 3 deaths" in instance.health)
    assert instance.state is InstanceState.DOWN
    assert not instance.awaits_restart
    assert instance.restart_count == 2
    assert not workers()
    # A trial that fails closes it again at once, one that answers a batch opens it.
    wait_until(lambda: instance.state is InstanceState.TRIAL)
    failure(instance, command(1))
    wait_until(lambda: instance.state is InstanceState.DOWN)
    assert "on trial: requests are refused" in instance.health
    wait_until(lambda: instance.state is InstanceState.TRIAL)
    ask(instance, command(0))
    assert instance.state is InstanceState.READY
    failure(instance, command(1))
    wait_until(lambda: instance.state is InstanceState.READY)
    assert instance.restart_count == 5


def test_model_that_cannot_reinitialize_fails_with_reason(models, tmp_path):
    instance = models.start(
        f"""
        class TritonPythonModel:
            def initialize(self, args):
                if os.path.exists({str(tmp_path / "broken")!r}):
                    raise RuntimeError("the disk is gone")
            def execute(self, requests):
                os._exit(1)
        """,
        restart_limit="2",
    )
    (tmp_path / "broken").touch()
    failure(instance)
    wait_until(lambda: "requests are refused" in instance.health)
    assert "the disk is gone" in instance.health


def test_nonsense_in_the_pipe_ends_the_worker_only(models):
    instance = models.executing(
        """
        for descriptor in [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]:
            try:
                if "pipe" in os.readlink(f"/proc/self/fd/{descriptor}"):
                    os.write(descriptor, b"\\0" * 100)
            except OSError:
                pass
        time.sleep(100)
        """
    )
    assert "sent nonsense (a frame of 0 bytes)" in failure(instance).message


# --- life -----------------------------------------------------------------------------------------------------------


def holdings() -> tuple[int, int, int]:
    process = psutil.Process()
    return process.num_fds(), process.num_threads(), len(process.children(recursive=True))


def assert_no_more_than(before: tuple[int, int, int]) -> None:
    # Less is fine: what earlier tests have started may end meanwhile. The kernel counts a thread that was joined a
    # little longer.
    deadline = time.monotonic() + 60
    now = holdings()
    while any(new > old for new, old in zip(now, before, strict=True)):
        assert time.monotonic() < deadline, f"{before} became {now}"
        time.sleep(0.01)
        now = holdings()


def test_cycles_of_life_leave_nothing_behind(models):
    instance = models.executing(ECHO)
    instance.close()
    before = holdings()
    for size in range(0, 20, 2):
        instance = models.start(f"class TritonPythonModel:\n    def execute(self, requests):\n        {ECHO}")
        ask(instance, np.zeros(1 << size, np.float32))
        instance.close()
    assert_no_more_than(before)


def test_restarts_leave_nothing_behind(models):
    instance = mortal(models, restart_limit="100", restart_window_s="0.01")
    ask(instance, command(0))
    before = holdings()
    for count in range(1, 6):
        failure(instance, command(1))
        wait_until(lambda count=count: instance.restart_count == count and not instance.health)
    ask(instance, command(0))
    assert_no_more_than(before)


def test_close_ends_workers_that_ignore_it(models):
    instance = models.start(
        """
        class TritonPythonModel:
            def execute(self, requests): ...
            def finalize(self):
                while True: time.sleep(1)
        """,
        finalize_timeout_s="0.2",
    )
    instance.close()
    assert not workers()


def test_close_while_a_batch_executes(models):
    instance = mortal(models)
    caught: list[InferError] = []
    thread = threading.Thread(target=lambda: caught.append(failure(instance, command(5))))
    thread.start()
    wait_until(instance._life.lock.locked)
    instance.close()
    thread.join(60)
    assert isinstance(caught[0], InstanceDiedError)
    assert not workers()


def test_processes_that_a_model_started_end_with_it(models, tmp_path):
    note = tmp_path / "pid"
    instance = models.executing(
        f"""
        import subprocess
        child = subprocess.Popen(["sleep", "1000"])
        open({str(note)!r}, "w").write(str(child.pid))
        os._exit(1)
        """,
        restart_limit="1",
    )
    failure(instance)
    wait_until(lambda: "requests are refused" in instance.health)
    wait_until(lambda: not psutil.pid_exists(int(note.read_text())))


def test_forked_process_that_outlives_model_delays_nothing(models, tmp_path):
    note = tmp_path / "pid"
    instance = models.executing(
        f"""
        child = os.fork()
        if not child:
            os.setsid()
            time.sleep(30)
            os._exit(0)
        while os.getsid(child) != child:
            time.sleep(0.001)
        open({str(note)!r}, "w").write(str(child))
        os._exit(1)
        """,
        restart_limit="1",
    )
    assert "exited with code 1" in failure(instance).message
    daemon = psutil.Process(int(note.read_text()))
    assert daemon.status() != psutil.STATUS_ZOMBIE  # the answer came before it had ended
    daemon.kill()


SERVER = """
import sys, time
from pathlib import Path
from naiad.backend.api import InstanceSpec, ModelContext
from naiad.backend.python.backend import PythonBackend
from naiad.config.model_config_pb2 import ModelConfig
directory = Path(sys.argv[1])
context = ModelContext("m", 1, ModelConfig(name="m", backend="python"), directory, directory / "1", 1)
instance = PythonBackend().load(context).create_instance(InstanceSpec("m_0_0", 0, "KIND_CPU"))
print("ready", flush=True)
time.sleep(100)
"""


def test_workers_end_when_the_server_is_killed(models):
    directory = models.write("class TritonPythonModel:\n    def execute(self, requests): ...")
    # Naiad need not be installed where these tests run.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", SERVER, str(directory)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert server.stdout is not None
    with server.stdout:
        assert server.stdout.readline() == b"ready\n"
        (worker,) = psutil.Process(server.pid).children()
        server.kill()
        server.wait()
    wait_until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


# --- log ------------------------------------------------------------------------------------------------------------


def test_output_of_model_is_logged_with_request_ids(models, caplog):
    caplog.set_level(logging.INFO, "naiad.model")
    instance = models.executing(
        """
        print("printed")
        print("to stderr", file=sys.stderr)
        logging.getLogger("mine").warning("logged %d", 5)
        pb_utils.Logger.log_error("by pb_utils")
        os.write(1, b"by native code\\n")
        sys.stdout.buffer.write(b"bytes\\n")
        return [answer(OUT=value(request)) for request in requests]
        """
    )
    requests = [make_request({"IN": FLOATS}) for _ in range(2)]
    requests[0].id, requests[1].id = "a-1", "b-2"
    execute(instance, requests)
    wait_until(lambda: len([record for record in caplog.records if record.name == "naiad.model"]) == 6)
    lines = {(r.levelname, r.getMessage()) for r in caplog.records if r.name == "naiad.model"}
    ids = "[request id: a-1, b-2] model 'm': "
    assert lines == {
        ("INFO", f"{ids}printed"),
        ("INFO", f"{ids}to stderr"),
        ("WARNING", f"{ids}logged 5"),
        ("ERROR", f"{ids}by pb_utils"),
        ("INFO", "model 'm': by native code"),
        ("INFO", "model 'm': bytes"),
    }
    (record,) = [r for r in caplog.records if "by pb_utils" in r.getMessage()]
    assert record.filename == "model.py"


def test_incomplete_last_line_is_logged(models, caplog):
    caplog.set_level(logging.INFO, "naiad.model")
    instance = models.executing(
        """
        print("unfinished", end="")
        return [answer(OUT=value(request)) for request in requests]
        """
    )
    execute(instance, [make_request({"IN": FLOATS})])
    instance.close()
    assert "model 'm': unfinished" in [record.getMessage() for record in caplog.records]


def test_a_crash_leaves_the_place_in_the_log(models, caplog):
    caplog.set_level(logging.INFO, "naiad.model")
    instance = models.executing("ctypes.string_at(0)", restart_limit="1")
    failure(instance)
    wait_until(lambda: "requests are refused" in instance.health)
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "Fatal Python error: Segmentation fault" in said
    assert re.search(r'File ".*/m/1/model.py", line \d+ in execute', said)


# --- the examples -------------------------------------------------------------------------------------------------

EXAMPLES = Path(__file__).parents[2] / "examples" / "python"


@pytest.fixture
def example(models) -> Callable[[str], WorkerInstance]:
    def start(name: str) -> WorkerInstance:
        directory = EXAMPLES / name
        config = pbtxt.parse_pbtxt((directory / "config.pbtxt").read_text()).config
        config.name = name
        model, _ = load_model(PythonBackend(), make_context(config, directory))
        return models.adopt(model.create_instance(InstanceSpec(f"{name}_0", 0, "KIND_CPU")))

    return start


def test_example_add_sub(example):
    answered = infer(example("add_sub"), {"INPUT0": FLOATS[None], "INPUT1": np.ones((1, 4), np.float32)})
    assert answered["OUTPUT0"].tolist() == [[1, 2, 3, 4]]
    assert answered["OUTPUT1"].tolist() == [[-1, 0, 1, 2]]


def test_example_parameters(example):
    instance = example("parameters")
    assert ask(instance).tolist() == FLOATS.tolist()
    header = RequestHeader(model_name="m", inputs=[TensorSpec("IN", DataType.FP32, (4,))], parameters={"factor": 3})
    (response,) = execute(instance, [make_request({"IN": FLOATS}, header=header)])
    assert output_arrays(response)["OUT"].tolist() == [0, 3, 6, 9]
    assert dict(response.parameters) == {"factor": 3.0}


def test_example_text(example):
    answered = infer(example("text"), {"TEXT": strings("grün".encode())[None]})
    assert answered["UPPER"].tolist() == [["GRÜN".encode()]]
    assert answered["LENGTH"].tolist() == [[4]]


def test_example_error(example):
    instance = example("error")
    good, bad, broken = (np.array([[each]], np.float32) for each in (4, -1, np.nan))
    first, second = execute(instance, [make_request({"IN": array}) for array in (good, bad)])
    assert output_arrays(first)["OUT"].tolist() == [[2.0]]
    assert second.error is not None
    assert (second.error.code, second.error.message) == (ErrorCode.INVALID_ARG, "IN must not be negative")
    assert "TritonModelException: NaN has no root" in failure(instance, broken).message


def test_example_auto_complete(example):
    assert ask(example("auto_complete"), FLOATS[None]).tolist() == [[0, -1, -2, -3]]
