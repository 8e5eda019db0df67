"""Models that call models, at random: one after the other, many coroutines at a time, streams, nested, cancelled."""

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path

import grpc
import numpy as np
import tritonclient.grpc.aio as grpcclient
from tritonclient.utils import InferenceServerException

from bench.soak.runner import ANSWER_S, Soak, side_by_side

WORKERS = 12
CALLS = 10
"""Of one request."""
_CANCELLED = 0.05
"""Share of requests that their clients give up."""
_NUMBER = """
input [ { name: "X" data_type: TYPE_FP64 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP64 dims: [ 1 ] } ]
"""
_SCRIPT = """
input [ { name: "SEED" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "CALLS" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "FOUND" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
_PRELUDE = '''
import asyncio, json, random, time
import numpy as np
import triton_python_backend_utils as pb_utils


def number(request):
    return float(pb_utils.get_input_tensor_by_name(request, "X").as_numpy().ravel()[0])


def answer(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("Y", np.array([float(value)]))])


def asking(model, value):
    tensors = [pb_utils.Tensor("X", np.array([float(value)]))]
    return pb_utils.InferenceRequest(model_name=model, inputs=tensors, requested_output_names=["Y"])


def value_of(response):
    """Return the number, or the words of an error."""
    if response.has_error():
        return response.error().message()
    return float(pb_utils.get_output_tensor_by_name(response, "Y").as_numpy()[0])
'''
# Twice X and one more; a negative number is an error, 1000 and above take their time.
_ADDER = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(number(request)) for request in requests]

    def one(self, x):
        if x >= 1000:
            time.sleep(0.01)
        if x < 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"negative {x}"))
        return answer(2 * x + 1)
"""
_NESTED = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(number(request)) for request in requests]

    def one(self, x):
        first = asking("adder", x).exec()
        return first if first.has_error() else asking("adder", value_of(first)).exec()
"""
# As many responses as X says; a negative number is an error after the first.
_STREAM = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x, sender = number(request), request.get_response_sender()
            for place in range(int(abs(x))):
                if sender.is_cancelled():
                    break
                sender.send(answer(place))
            if x < 0:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(f"negative {x}")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_FOUND = """
class Found:
    def __init__(self, seed):
        self.random, self.counts, self.wrong = random.Random(seed), {}, []

    def check(self, kind, got, *right):
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if not any(got == each or (isinstance(each, str) and each in str(got)) for each in right):
            self.wrong.append(f"{kind}: {got!r} instead of {right!r}")

    def response(self):
        text = json.dumps({"counts": self.counts, "wrong": self.wrong}).encode()
        return pb_utils.InferenceResponse([pb_utils.Tensor("FOUND", np.array([text], object))])


def asked(request):
    names = ("SEED", "CALLS")
    return [int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0]) for name in names]


KINDS = ("plain", "error", "nested", "timeout", "stream", "stream_error", "early_end", "cancelled")
"""
_CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.one(*asked(request)) for request in requests]

    def one(self, seed, calls):
        found = Found(seed)
        for _ in range(calls):
            kind = found.random.choice(KINDS)
            getattr(self, kind)(found, found.random.randrange(1, 50))
        return found.response()

    def plain(self, found, x):
        found.check("plain", value_of(asking("adder", x).exec()), 2 * x + 1)

    def error(self, found, x):
        found.check("error", value_of(asking("adder", -x).exec()), "negative")

    def nested(self, found, x):
        found.check("nested", value_of(asking("nested", x).exec()), 4 * x + 3)

    def timeout(self, found, x):
        got = value_of(asking("adder", 1000 + x).exec(execution_timeout=5000))
        found.check("timeout", got, 2 * (1000 + x) + 1, "imeout", "took longer", "microseconds")

    def stream(self, found, x):
        got = [value_of(each) for each in asking("stream", x).exec(decoupled=True) if each.output_tensors()]
        found.check("stream", got, [float(place) for place in range(x)])

    def stream_error(self, found, x):
        got = [value_of(each) for each in asking("stream", -x).exec(decoupled=True) if each.has_error()]
        found.check("stream_error", got, "negative")

    def early_end(self, found, x):
        got = [value_of(each) for each, _ in zip(asking("stream", 50 + x).exec(decoupled=True), range(3))]
        found.check("early_end", got, [0.0, 1.0, 2.0])

    def cancelled(self, found, x):
        responses = asking("stream", 50 + x).exec(decoupled=True)
        first = value_of(next(iter(responses)))
        responses.cancel()
        found.check("cancelled", first, 0.0)
"""
_COROUTINES = """
class TritonPythonModel:
    async def execute(self, requests):
        return [await self.one(*asked(request)) for request in requests]

    async def one(self, seed, calls):
        found = Found(seed)
        kinds = [found.random.choice(KINDS) for _ in range(calls)]
        numbers = [found.random.randrange(1, 50) for _ in range(calls)]
        await asyncio.gather(*(getattr(self, kind)(found, x) for kind, x in zip(kinds, numbers)))
        return found.response()

    async def plain(self, found, x):
        found.check("plain", value_of(await asking("adder", x).async_exec()), 2 * x + 1)

    async def error(self, found, x):
        found.check("error", value_of(await asking("adder", -x).async_exec()), "negative")

    async def nested(self, found, x):
        found.check("nested", value_of(await asking("nested", x).async_exec()), 4 * x + 3)

    async def timeout(self, found, x):
        got = value_of(await asking("adder", 1000 + x).async_exec(execution_timeout=5000))
        found.check("timeout", got, 2 * (1000 + x) + 1, "imeout", "took longer", "microseconds")

    async def stream(self, found, x):
        responses = await asking("stream", x).async_exec(decoupled=True)
        got = [value_of(each) async for each in responses if each.output_tensors()]
        found.check("stream", got, [float(place) for place in range(x)])

    async def stream_error(self, found, x):
        responses = await asking("stream", -x).async_exec(decoupled=True)
        found.check("stream_error", [value_of(each) async for each in responses if each.has_error()], "negative")

    async def early_end(self, found, x):
        responses = await asking("stream", 50 + x).async_exec(decoupled=True)
        async for first in responses:
            found.check("early_end", value_of(first), 0.0)
            break

    async def cancelled(self, found, x):
        task = asyncio.ensure_future(asking("adder", 1000 + x).async_exec())
        await asyncio.sleep(0.001)
        task.cancel()
        try:
            got = value_of(await task)
        except asyncio.CancelledError:
            got = "cancelled"
        found.check("cancelled", got, "cancelled", 2 * (1000 + x) + 1)
"""
MODELS = {
    "adder": (_NUMBER, _ADDER, "instance_group [ { count: 2 kind: KIND_CPU } ]"),
    "nested": (_NUMBER, _NESTED, "instance_group [ { count: 2 kind: KIND_CPU } ]"),
    "stream": (_NUMBER, _STREAM, "model_transaction_policy { decoupled: true }"),
    "caller": (_SCRIPT, _FOUND + _CALLER, ""),
    "coroutines": (_SCRIPT, _FOUND + _COROUTINES, ""),
}
_STACKS = 'parameters { key: "stacks_after_s" value { string_value: "20" } }'
"""The log says where a model hangs."""
CALLERS = ("caller", "coroutines")


def write_repository(root: Path) -> Sequence[str]:
    """Write the models and return their names."""
    for name, (tensors, source, extra) in MODELS.items():
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(f'backend: "python"\n{tensors}\n{extra}\n{_STACKS}')
        (root / name / "1" / "model.py").write_text(_PRELUDE + source)
    return list(MODELS)


async def run(soak: Soak) -> None:
    """Ask both callers until `count` calls were answered and checked."""
    async with grpcclient.InferenceServerClient(f"127.0.0.1:{soak.server.grpc_port}") as client:

        async def work(soak: Soak, generator: random.Random, number: int) -> None:
            await _one(client, soak, generator)

        await side_by_side(soak, WORKERS, work)


async def _one(client: grpcclient.InferenceServerClient, soak: Soak, generator: random.Random) -> None:
    inputs = []
    for name, value in (("SEED", generator.getrandbits(40)), ("CALLS", CALLS)):
        inputs.append(grpcclient.InferInput(name, [1], "INT64"))
        inputs[-1].set_data_from_numpy(np.array([value], np.int64))
    asked = asyncio.ensure_future(client.infer(generator.choice(CALLERS), inputs))
    if generator.random() < _CANCELLED:
        await asyncio.sleep(generator.uniform(0, 0.05))
        asked.cancel()
    try:
        found = json.loads((await asyncio.wait_for(asked, ANSWER_S)).as_numpy("FOUND")[0])
    except asyncio.CancelledError:
        soak.note("requests cancelled")
    except TimeoutError:
        soak.hung += 1
    except (InferenceServerException, grpc.RpcError) as error:
        soak.mistake(f"a request failed: {error}")
    else:
        for mistake in found["wrong"]:
            soak.mistake(mistake)
        for kind, amount in found["counts"].items():
            soak.note(kind, amount)
        soak.advance(sum(found["counts"].values()))
