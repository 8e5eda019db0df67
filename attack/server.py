"""A naiad server of its own, on loopback and free ports, with a small repository."""

import time
from collections.abc import Sequence
from pathlib import Path

from onnx import TensorProto, helper

from naiad.options.network.access_options import format_line
from naiad.tools.process.child import ProcessError, with_this_path
from naiad.tools.process.own_server import LOOPBACK, ServeProcess

KEY = "naiad_attack_suite"
"""The API key of the probes; attackers have none."""
_START_S = 150.0
_EXIT_S = 20.0
_PYTHON_ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())]
            )
            for request in requests
        ]
"""
_CONFIG = """
max_batch_size: 8
input [ {{ name: "{input}" data_type: {datatype} dims: [ {elements} ] }} ]
output [ {{ name: "{output}" data_type: {datatype} dims: [ {elements} ] }} ]
backend: "{backend}"
"""

_PAGES_CONFIG = """
backend: "python" model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "PAGE" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
_PAGES = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        page = pb_utils.Tensor("PAGE", np.array(["x" * 32768], object))
        for request in requests:
            sender = request.get_response_sender()
            for _ in range(int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0])):
                if sender.is_cancelled():
                    break
                sender.send(pb_utils.InferenceResponse([page]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_MORTAL_CONFIG = """
backend: "python"
input [ { name: "KIND" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "KIND_OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
_MORTAL = """
import os
import signal
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            kind = pb_utils.get_input_tensor_by_name(request, "KIND").as_numpy()
            if kind[0] == b"deadly":
                os.kill(os.getpid(), signal.SIGKILL)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("KIND_OUT", kind)]))
        return responses
"""


def write_repository(root: Path) -> None:
    """Write the models.

    `echo` (ONNX), `python_echo`, the identities `floats` and `texts` of any length, `pages`, which streams, and
    `mortal`, whose worker dies when a request says so.
    """
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("IN", "OUT")]
    graph = helper.make_graph([helper.make_node("Identity", ["IN"], ["OUT"])], "echo", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    echo = {"input": "IN", "output": "OUT", "datatype": "TYPE_FP32", "elements": 4}
    _write(root, "echo", _CONFIG.format(backend="onnxruntime", **echo), "model.onnx", model.SerializeToString())
    _write(root, "python_echo", _CONFIG.format(backend="python", **echo), "model.py", _PYTHON_ECHO.encode())
    for name, datatype in (("floats", "TYPE_FP32"), ("texts", "TYPE_STRING")):
        identity = {"input": "INPUT0", "output": "OUTPUT0", "datatype": datatype, "elements": -1}
        _write(root, name, _CONFIG.format(backend="identity", **identity))
    _write(root, "pages", _PAGES_CONFIG, "model.py", _PAGES.encode())
    _write(root, "mortal", _MORTAL_CONFIG, "model.py", _MORTAL.encode())


def _write(root: Path, name: str, config: str, file: str = "", content: bytes = b"") -> None:
    version = root / name / "1"
    version.mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(config)
    if file:
        (version / file).write_bytes(content)


class Server:
    """`naiad serve` over a repository, with or without API keys."""

    def __init__(self, repository: Path, work: Path, *, has_keys: bool, flags: Sequence[str] = ()) -> None:
        self.has_keys = has_keys
        self.log = work / f"server-{time.time_ns()}.log"
        arguments = [f"--model-repository={repository}", *LOOPBACK, *flags]
        if has_keys:
            keys = work / "keys"
            keys.write_text(format_line("probe", ["all"], KEY) + "\n")
            arguments.append(f"--api-key-file={keys}")
        self._process = ServeProcess(arguments, output=self.log, environment=with_this_path())
        self.pid = self._process.pid
        try:
            ports = self._process.wait_ready(_START_S).ports
        except ProcessError as error:
            self.stop()
            raise RuntimeError(f"the server has not started:\n{error}") from None
        self.http_port, self.grpc_port = ports["http"], ports["grpc"]

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process.is_alive

    @property
    def exit_status(self) -> int | None:
        """Return the exit status; None while it runs."""
        return self._process.process.status

    def stop(self) -> None:
        """End the process."""
        self._process.close(_EXIT_S)
