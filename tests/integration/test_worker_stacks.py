"""The log says what a Python model is doing when a batch takes too long."""

from pathlib import Path

import numpy as np
import tritonclient.http as httpclient

from support.model_repository import write_model

_CONFIG = """
backend: "python"
max_batch_size: 0
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
parameters { key: "stacks_after_s" value { string_value: "1.5" } }
"""
_MODEL = """
import threading
import time
import numpy as np
import triton_python_backend_utils as pb_utils

def sleeps_in_a_thread():
    time.sleep(3600)

class TritonPythonModel:
    def initialize(self, args):
        threading.Thread(target=sleeps_in_a_thread, daemon=True).start()

    def waits_for_what_does_not_come(self, seconds):
        threading.Event().wait(seconds)

    def execute(self, requests):
        seconds = float(pb_utils.get_input_tensor_by_name(requests[0], "X").as_numpy()[0])
        self.waits_for_what_does_not_come(seconds)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([seconds], np.float32))])]
"""


def infer(client: httpclient.InferenceServerClient, seconds: float) -> float:
    given = httpclient.InferInput("X", [1], "FP32")
    given.set_data_from_numpy(np.array([seconds], np.float32))
    return client.infer("stuck", [given]).as_numpy("Y").item()


def test_slow_batch_logs_stacks_once_and_completes(tmp_path: Path, start_server) -> None:
    root = tmp_path / "models"
    write_model(root, "stuck", _CONFIG, {"1/model.py": _MODEL})
    server = start_server(root)
    server.wait_ready()
    with httpclient.InferenceServerClient(server.http_url, network_timeout=60, connection_timeout=60) as client:
        assert infer(client, 0) == 0
        assert infer(client, 3) == 3
        server.wait_log("in waits_for_what_does_not_come")
        server.wait_log("in sleeps_in_a_thread")
        assert infer(client, 0) == 0
    text = server.log_text()
    assert text.count("the stacks of its worker follow") == 1
    assert "was killed" not in text
