"""A Python model that holds its requests until the test lets them go, and notes what it sees of each."""

from pathlib import Path

from support.model_repository import write_model
from support.waiting import wait_until

_SOURCE = """
import os, time
import numpy as np
import triton_python_backend_utils as pb_utils

WHERE = {where!r}


def note(request, what):
    path = os.path.join(WHERE, request.request_id() + "." + what)
    with open(path + ".part", "w") as file:
        file.write(repr(time.monotonic()))
    os.rename(path + ".part", path)


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            note(request, "began")
        noted = set()
        while not all([self.may_go(request, noted) for request in requests]):
            time.sleep(0.001)
        return [self.answer(request) for request in requests]

    def may_go(self, request, noted):
        name = request.request_id()
        if request.is_cancelled() and name not in noted:
            noted.add(name)
            note(request, "cancelled")
        return name in noted or os.path.exists(os.path.join(WHERE, name + ".go"))

    def answer(self, request):
        tensor = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor * 2)])
"""

_EMITTING = """
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=self.run, args=(request,)).start()

    def run(self, request):
        sender = request.get_response_sender()
        note(request, "began")
        noted = set()
        sender.send(self.answer(request))
        while not self.may_go(request, noted):
            time.sleep(0.001)
        sender.send(self.answer(request), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


class Notes:
    """What the model has noted, and what lets its requests go."""

    def __init__(self, where: Path) -> None:
        self.where = where
        where.mkdir(exist_ok=True)

    def has(self, request_id: str, what: str) -> bool:
        """Whether a request "began" to execute or was seen to be "cancelled"."""
        return (self.where / f"{request_id}.{what}").exists()

    def wait(self, request_id: str, what: str) -> float:
        """Wait for it, and return when that was, on the monotonic clock."""
        wait_until(lambda: self.has(request_id, what), f"request '{request_id}' never {what}")
        return float((self.where / f"{request_id}.{what}").read_text())

    def release(self, request_id: str) -> None:
        """Let a request be answered."""
        (self.where / f"{request_id}.go").touch()


def write_held(
    repository: Path, name: str, notes: Path, *, max_batch_size: int = 1, extra: str = "", decoupled: bool = False
) -> Path:
    """Write a model whose OUT is twice its IN, FP32[-1]; a request is held until it may go or is cancelled.

    A decoupled one sends its answer at once, and again when the request may go.
    """
    notes.mkdir(exist_ok=True)
    config = f"""
      backend: "python" max_batch_size: {max_batch_size}
      input [ {{ name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }} ]
      output [ {{ name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }} ]
      {"model_transaction_policy { decoupled: true }" if decoupled else ""}
      {extra}
    """
    source = _SOURCE.replace("{where!r}", repr(str(notes)))
    if decoupled:
        source = source.replace("import os,", "import os, threading,") + _EMITTING
    return write_model(repository, name, config, {"1/model.py": source})
