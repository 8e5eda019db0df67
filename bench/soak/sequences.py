"""Sequences at random: more than there are slots, of any length, some dropped, cancelled, late or begun twice.

A Python model keeps the sum of each sequence under its correlation id, and gets a notice of ends without END. What
it answers is compared with what the client has sent: a shared slot shows, and so does a request that is lost, comes
twice or out of order.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc.aio as grpcclient
from tritonclient.utils import InferenceServerException

from bench.soak.runner import ANSWER_S, Soak, side_by_side

WORKERS = 64
IDLE_S = 1.0
_SLOTS = 16
"""Of each strategy: fewer than there are workers, so that some always wait for a slot."""
_CONFIG = """
backend: "python"
max_batch_size: 16
input [ {{ name: "X" data_type: TYPE_INT64 dims: [ 1 ] }} ]
output [ {{ name: "Y" data_type: TYPE_INT64 dims: [ 4 ] }} ]
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
sequence_batching {{
  max_sequence_idle_microseconds: {idle_us}
  {strategy}
  control_input [
    {{ name: "START" control [ {{ kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }} ] }},
    {{ name: "END" control [ {{ kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] }} ] }},
    {{ name: "READY" control [ {{ kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] }} ] }},
    {{ name: "ID" control [ {{ kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 }} ] }}
  ]
}}
"""
# Answers with the sum, the number of requests, the id, and how many sequences it knows.
_MODEL = """
import random, time
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.known = {}

    def sequence_ended(self, correlation_id, reason):
        self.known.pop(correlation_id, None)

    def execute(self, requests):
        if random.random() < 0.02:
            time.sleep(0.01)
        return [self.one(request) for request in requests]

    def one(self, request):
        x, start, end, ready, key = (
            int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()[0])
            for name in ("X", "START", "END", "READY", "ID")
        )
        total, count = 0, 0
        if ready:
            total, count = (0, 0) if start else self.known[key]
            total, count = total + x, count + 1
            self.known[key] = (total, count)
        found = np.array([[total, count, key, len(self.known)]], np.int64)
        if end:
            self.known.pop(key, None)
        return pb_utils.InferenceResponse([pb_utils.Tensor("Y", found)])
"""
STRATEGIES = {
    "direct": "direct { }",
    "oldest": f"oldest {{ max_candidate_sequences: {_SLOTS} }}",
}
_KINDS = {"whole": 76, "stream": 10, "dropped": 4, "cancelled": 5, "late": 1, "begun twice": 2, "without a start": 2}
_ids = itertools.count(1)


def write_repository(root: Path) -> Sequence[str]:
    """Write the model with either strategy and return the names."""
    for name, strategy in STRATEGIES.items():
        (root / name / "1").mkdir(parents=True)
        config = _CONFIG.format(strategy=strategy, idle_us=int(IDLE_S * 1e6))
        (root / name / "config.pbtxt").write_text(config)
        (root / name / "1" / "model.py").write_text(_MODEL)
    return list(STRATEGIES)


class Client:
    """One sequence, and what its model should know of it."""

    def __init__(self, connection: grpcclient.InferenceServerClient, soak: Soak, model: str) -> None:
        self._connection = connection
        self._soak = soak
        self._model = model
        self._id = next(_ids)
        self._total = self._count = 0
        self._answered_s = time.monotonic()

    def call(self, x: int, **flags: bool) -> dict[str, Any]:
        """Return the arguments of a request."""
        given = grpcclient.InferInput("X", [1, 1], "INT64")
        given.set_data_from_numpy(np.array([[x]], np.int64))
        return {"model_name": self._model, "inputs": [given], "sequence_id": self._id, **flags}

    async def send(self, x: int, **flags: bool) -> None:
        """Send a request and compare its answer. Raises InferenceServerException when it is refused."""
        gap_s = time.monotonic() - self._answered_s
        try:
            answer = await asyncio.wait_for(self._connection.infer(**self.call(x, **flags)), ANSWER_S)
        except InferenceServerException as error:
            has_stalled = time.monotonic() - self._soak.stalled_s < 2 * IDLE_S
            if "expired" in error.message() and (has_stalled or gap_s > 0.9 * IDLE_S):
                # This machine was busy, and the sequence rightly gone.
                raise _TooSlowError from None
            raise
        self.compare(x, answer, is_first=flags.get("sequence_start", False))

    def compare(self, x: int, answer: Any, *, is_first: bool) -> None:
        """Compare an answer with what the model should know."""
        self._total, self._count = (x, 1) if is_first else (self._total + x, self._count + 1)
        found = answer.as_numpy("Y").ravel().tolist()
        if found[:3] != [self._total, self._count, self._id]:
            right = [self._total, self._count, self._id]
            self._soak.mistake(f"{self._model}: {found[:3]} instead of {right} (sum, requests, id)")
        self._soak.note("answers")
        self._answered_s = time.monotonic()

    # --- what clients do --------------------------------------------------------------------------------------------

    async def whole(self, numbers: Sequence[int], generator: random.Random) -> None:
        """Send everything, one after the other."""
        for place, x in enumerate(numbers):
            await self.send(x, sequence_start=place == 0, sequence_end=place == len(numbers) - 1)

    async def stream(self, numbers: Sequence[int], generator: random.Random) -> None:
        """Send everything at once over a stream, which keeps the order."""

        async def requests() -> Any:
            for place, x in enumerate(numbers):
                flags = {"sequence_start": place == 0, "sequence_end": place == len(numbers) - 1}
                yield {**self.call(x), **flags}

        answers = self._connection.stream_infer(requests())
        place = 0
        async with asyncio.timeout(ANSWER_S):
            async for answer, error in answers:
                if error is not None:
                    raise error
                self.compare(numbers[place], answer, is_first=place == 0)
                place += 1
        if place != len(numbers):
            self._soak.mistake(f"{self._model}: {place} answers for {len(numbers)} requests of a stream")

    async def dropped(self, numbers: Sequence[int], generator: random.Random) -> None:
        """Go away in the middle."""
        for place, x in enumerate(numbers):
            await self.send(x, sequence_start=place == 0)

    async def cancelled(self, numbers: Sequence[int], generator: random.Random) -> None:
        """Cancel a request, wherever it is, and go away."""
        await self.dropped(numbers[:-1], generator)
        last = asyncio.ensure_future(self._connection.infer(**self.call(0, sequence_start=len(numbers) == 1)))
        await asyncio.sleep(generator.uniform(0, 0.01))
        last.cancel()
        try:
            await asyncio.wait_for(last, ANSWER_S)
        except asyncio.CancelledError:
            self._soak.note("requests cancelled")

    async def late(self, numbers: Sequence[int], generator: random.Random) -> None:
        """Go on when the sequence has long expired, which is an error that says so."""
        await self.dropped(numbers, generator)
        await asyncio.sleep(2 * IDLE_S)
        await self._is_refused("has expired", 1)

    async def begun_twice(self, numbers: Sequence[int], generator: random.Random) -> None:
        """Begin again under the id of a live sequence."""
        await self.dropped(numbers, generator)
        await self.whole(numbers, generator)

    async def without_a_start(self, numbers: Sequence[int], generator: random.Random) -> None:
        """Send something of a sequence that has not begun, which is an error that says so."""
        await self._is_refused("must specify the START flag", numbers[0])

    async def _is_refused(self, words: str, x: int) -> None:
        try:
            await asyncio.wait_for(self._connection.infer(**self.call(x)), ANSWER_S)
        except InferenceServerException as error:
            if words not in error.message():
                self._soak.mistake(f"{self._model}: '{error.message()}' instead of '{words}'")
        else:
            self._soak.mistake(f"{self._model}: a request of no live sequence was answered")


class _TooSlowError(Exception):
    """The client paused for longer than a sequence may be idle."""


async def run(soak: Soak) -> None:
    """Send `count` sequences to both models; then nothing of them may be known any more."""
    async with grpcclient.InferenceServerClient(f"127.0.0.1:{soak.server.grpc_port}") as connection:

        async def work(soak: Soak, generator: random.Random, number: int) -> None:
            await _one(connection, soak, generator)

        await side_by_side(soak, WORKERS, work)
        await _look_for_remains(connection, soak)


async def _one(connection: grpcclient.InferenceServerClient, soak: Soak, generator: random.Random) -> None:
    kind = generator.choices(list(_KINDS), list(_KINDS.values()))[0]
    client = Client(connection, soak, generator.choice(list(STRATEGIES)))
    numbers = [generator.randrange(1, 1000) for _ in range(generator.randint(1, 8))]
    soak.advance()
    try:
        await getattr(client, kind.replace(" ", "_"))(numbers, generator)
    except _TooSlowError:
        soak.note("too slow")
    except TimeoutError:
        soak.hung += 1
    except (InferenceServerException, grpc.RpcError) as error:
        soak.mistake(f"{kind}: {error}")
    else:
        soak.note(kind)


async def _look_for_remains(connection: grpcclient.InferenceServerClient, soak: Soak) -> None:
    """Ask each model how many sequences it knows, once those that were dropped must have expired."""
    deadline = time.monotonic() + ANSWER_S
    for model in STRATEGIES:
        known = 0
        while time.monotonic() < deadline:
            client = Client(connection, soak, model)
            asked = client.call(1, sequence_start=True, sequence_end=True)
            known = (await connection.infer(**asked)).as_numpy("Y").ravel().tolist()[3]
            if known == 1:  # this one
                break
            await asyncio.sleep(IDLE_S / 4)
        if known != 1:
            soak.mistake(f"{model} still knows {known - 1} sequences")
