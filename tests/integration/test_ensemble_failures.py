"""Ensembles whose members fail at random: every caller is answered, and nothing is left behind."""

import asyncio
import re
import time
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcclient_aio
from tritonclient.utils import InferenceServerException

from support.ensemble_models import tensor, write_ensemble
from support.long_run import is_long
from support.model_repository import write_model
from support.server_process import ServerProcess

RUNS = 10_000 if is_long() else 2_500
IN_FLIGHT = 64
STEPS = ("first", "second", "third")
_UNANSWERED_S = 30.0
"""After so long a caller counts as lost."""

# Adds one to its input, unless it fails: in one of four ways, the last of which takes the process with it.
_FRAIL = """
import os
import random

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.random = random.Random(args["model_name"])

    def execute(self, requests):
        luck = self.random.random()
        if luck < 0.0005:
            os._exit(9)
        if luck < 0.02:
            raise RuntimeError("bad luck for the batch")
        return [self.answer(request) for request in requests]

    def answer(self, request):
        luck = self.random.random()
        if luck < 0.02:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("bad luck for one"))
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() + 1
        if luck < 0.04:
            values = np.zeros((1, 7), np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", values)])
"""


def _write(root: Path) -> None:
    for name in STEPS:
        config = f"""
          backend: "python" max_batch_size: 8 dynamic_batching {{ }}
          input [ {tensor("IN", dims="1")} ] output [ {tensor("OUT", dims="1")} ]
          instance_group [ {{ count: 1 kind: KIND_CPU }} ]
        """
        write_model(root, name, config, {"1/model.py": _FRAIL})
    write_ensemble(
        root,
        "frail",
        [tensor("A", dims="1")],
        [tensor("B", dims="1")],
        [
            ("first", {"IN": "A"}, {"OUT": "t"}),
            ("second", {"IN": "t"}, {"OUT": "u"}),
            ("third", {"IN": "u"}, {"OUT": "B"}),
        ],
    )


class _Tally:
    def __init__(self) -> None:
        self.right = self.failed = 0
        self.other: list[str] = []
        self.slowest_s = 0.0


async def _ask(client: grpcclient_aio.InferenceServerClient, number: int, tally: _Tally) -> None:
    given = grpcclient.InferInput("A", [1, 1], "FP32")
    given.set_data_from_numpy(np.full((1, 1), number, np.float32))
    began = time.monotonic()
    try:
        result = await client.infer("frail", [given], client_timeout=_UNANSWERED_S)
    except InferenceServerException as error:
        if re.search(r"in ensemble 'frail'", error.message()):
            tally.failed += 1
        else:
            tally.other.append(f"{error.status()}: {error.message()}")
    else:
        values = result.as_numpy("B")
        if values.shape == (1, 7):
            tally.failed += 1  # what the last step answered wrongly is passed on
        elif values.tolist() == [[number + len(STEPS)]]:
            tally.right += 1
        else:
            tally.other.append(f"{number} became {values}")
    tally.slowest_s = max(tally.slowest_s, time.monotonic() - began)


async def _ask_all(url: str) -> _Tally:
    tally = _Tally()
    numbers = iter(range(RUNS))

    async def caller() -> None:
        for number in numbers:
            await _ask(client, number, tally)

    async with grpcclient_aio.InferenceServerClient(url) as client:
        await asyncio.gather(*[caller() for _ in range(IN_FLIGHT)])
    return tally


@pytest.mark.timeout(300)
def test_every_caller_is_answered_and_nothing_is_left(tmp_path: Path, start_server) -> None:
    root = tmp_path / "models"
    _write(root)
    server: ServerProcess = start_server(root)
    server.wait_ready()
    tally = asyncio.run(_ask_all(server.grpc_url))
    print(f"right {tally.right}, failed {tally.failed}, slowest {tally.slowest_s * 1e3:.0f} ms")
    assert tally.other == []
    assert tally.right + tally.failed == RUNS
    assert tally.right > RUNS / 2
    assert tally.failed > RUNS / 50
    _nothing_is_left(server)


def _nothing_is_left(server: ServerProcess) -> None:
    with grpcclient.InferenceServerClient(server.grpc_url) as client:
        (stats,) = client.get_inference_statistics("frail", as_json=True)["model_stats"]
        counts = stats["inference_stats"]
        assert int(counts["success"]["count"]) + int(counts["fail"]["count"]) == RUNS
    metrics = server.get("/metrics", url=server.metrics_url).body.decode()
    for name in (*STEPS, "frail"):
        assert re.search(rf'nv_inference_pending_request_count{{[^}}]*model="{name}"[^}}]*}} 0\n', metrics), name
