"""Triton's environment variables for test suites, with a real server and stock tritonclient."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from support.model_repository import write_model
from support.server_process import serving

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

CONFIG = """
backend: "identity"
max_batch_size: 2
sequence_batching { max_sequence_idle_microseconds: 60000000 direct { } }
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""


def ask(client: grpcclient.InferenceServerClient, sequence: int) -> int:
    tensor = grpcclient.InferInput("INPUT0", [1, 1], "INT32")
    tensor.set_data_from_numpy(np.array([[sequence]], np.int32))
    options = {"sequence_id": sequence, "sequence_start": True, "sequence_end": True}
    return int(client.infer("sums", [tensor], client_timeout=60, **options).as_numpy("OUTPUT0")[0, 0])


def test_delays_hold_sequences_and_control_calls(tmp_path: Path):
    write_model(tmp_path / "models", "sums", CONFIG, {"1/empty": ""})
    environment = {
        "TRITONSERVER_DELAY_SCHEDULER": "2",
        "TRITONSERVER_BACKLOG_DELAY_SCHEDULER": "2",
        "TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC": "1",
    }
    flags = (f"--model-repository={tmp_path / 'models'}",)
    with serving(tmp_path / "log", *flags, environment=environment) as server:
        server.wait_log("artificial delays")
        with grpcclient.InferenceServerClient(server.grpc_url) as client:
            with pytest.raises(InferenceServerException, match="Deadline Exceeded"):
                client.is_server_live(client_timeout=0.5)
            assert client.is_server_live(client_timeout=60)
            # Two sequences get the slots and two wait for one; fewer than four would never be executed.
            with ThreadPoolExecutor(4) as pool:
                first = [pool.submit(ask, client, number) for number in (1, 2, 3)]
                assert not any(each.done() for each in first)
                fourth = pool.submit(ask, client, 4)
                assert [each.result(60) for each in (*first, fourth)] == [1, 2, 3, 4]
