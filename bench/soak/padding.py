"""Requests of all lengths through two padded models, some of which fail or are cancelled: whose answer is whose?"""

import asyncio
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import grpc
import numpy as np
import tritonclient.grpc.aio as grpcclient
from tritonclient.utils import InferenceServerException

from bench.soak.runner import ANSWER_S, Soak, side_by_side

WORKERS = 64
_LONGEST = 70
"""A little beyond the last bucket."""
_CANCELLED, _FAILS = 0.02, 0.02
_CONFIG = """
backend: "{backend}"
max_batch_size: 16
dynamic_batching {{ }}
instance_group [ {{ count: 2 kind: KIND_CPU }} ]
input [ {{ name: "X" data_type: TYPE_INT64 dims: [ -1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_INT64 dims: [ -1 ] }} ]
parameters {{ key: "pad_input.X" value {{ string_value: "buckets=8,16,32,64 {added}" }} }}
parameters {{ key: "cut_output.Y" value {{ string_value: "X" }} }}
"""
# Computes on the whole batch at once, as a network does; a request that begins with -1 fails alone.
_MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
        counts = np.concatenate([pb_utils.get_input_tensor_by_name(request, "N").as_numpy() for request in requests])
        made = np.concatenate(tensors) * 2 + counts[:, None]
        return [
            pb_utils.InferenceResponse(error=pb_utils.TritonError("asked to"))
            if tensor[0, 0] == -1
            else pb_utils.InferenceResponse([pb_utils.Tensor("Y", made[row : row + 1])])
            for row, tensor in enumerate(tensors)
        ]
"""
_numbers = itertools.count(1)


def write_repository(root: Path) -> Sequence[str]:
    """Write a model that computes and one that hands back what it gets; return their names."""
    for name, backend, added in (("python", "python", "lengths=N"), ("identity", "identity", "")):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(_CONFIG.format(backend=backend, added=added))
    (root / "python" / "1" / "model.py").write_text(_MODEL)
    return ["python", "identity"]


async def run(soak: Soak) -> None:
    """Send `count` requests."""
    async with grpcclient.InferenceServerClient(f"127.0.0.1:{soak.server.grpc_port}") as client:

        async def work(soak: Soak, generator: random.Random, number: int) -> None:
            await _one(client, soak, generator)

        await side_by_side(soak, WORKERS, work)


async def _one(client: grpcclient.InferenceServerClient, soak: Soak, generator: random.Random) -> None:
    model = generator.choice(("python", "identity"))
    fails = model == "python" and generator.random() < _FAILS
    length = generator.randint(1, _LONGEST)
    # Its number in every element: any part shows whose answer it is.
    array = np.arange(length, dtype=np.int64)[None] + 1000 * next(_numbers)
    if fails:
        array[0, 0] = -1
    given = grpcclient.InferInput("X", [1, length], "INT64")
    given.set_data_from_numpy(array)
    soak.advance()
    asked = asyncio.ensure_future(client.infer(model, [given]))
    if generator.random() < _CANCELLED:
        await asyncio.sleep(generator.uniform(0, 0.01))
        asked.cancel()
    try:
        found = (await asyncio.wait_for(asked, ANSWER_S)).as_numpy("Y")
    except asyncio.CancelledError:
        soak.note("cancelled")
    except TimeoutError:
        soak.hung += 1
    except (InferenceServerException, grpc.RpcError) as error:
        soak.note("failed")
        if not fails or "asked to" not in str(error):
            soak.mistake(f"{model}: {error}")
    else:
        soak.note("answered")
        right = 2 * array + length if model == "python" else array
        if fails or not np.array_equal(found, right):
            soak.mistake(f"{model}: {found.tolist()} instead of {right.tolist()}")
