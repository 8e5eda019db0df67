"""Requests of naiad perf to models in the same process."""

from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from naiad.core.datatype import DataType
from naiad.core.errors import InferError
from naiad.core.request import RequestHeader
from naiad.core.tensor import TensorSpec, to_array, to_buffer
from naiad.tools.perf.perf_exchange import RequestTemplate
from naiad.tools.perf.perf_plan import Protocol, ServerTarget
from naiad.tools.perf.targets import make_target
from support.perf_targets import Sender, run, template

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


@asynccontextmanager
async def opened(repository: Path, *models: str, **fields: object):
    target = make_target(ServerTarget(str(repository), Protocol.IN_PROCESS, **fields), models)
    await target.open(8)
    try:
        yield target
    finally:
        await target.close()


def test_outputs_come_from_the_model(repository: Path) -> None:
    async def body() -> None:
        async with opened(repository, "identity", "add_sub") as target:
            assert target.server.model_metadata("identity").inputs[0].name == "INPUT0"
            sender = Sender(target, template("identity", ROWS))
            for ended in [sender.begin(wants_body=True, request_id=str(i)) for i in range(50)]:
                exchange = await ended
                assert (exchange.failure, exchange.responses) == ("", 1)
                assert exchange.start_ns <= exchange.first_ns == exchange.end_ns
                ((specs, data),) = exchange.body
                assert np.array_equal(to_array(specs[0], data[0]), ROWS)
            assert len(sender.ends) == len(set(sender.ends))
            await target.open(16)
            assert [each.name for each in target.server.statistics("identity")] == ["identity"]

    run(body())


def test_decoupled_responses_are_timed(repository: Path) -> None:
    arrays = {"IN": np.array([4, 2], np.int32), "DELAY": np.full(2, 5, np.uint32), "WAIT": np.zeros(1, np.uint32)}
    kinds = {"IN": DataType.INT32, "DELAY": DataType.UINT32, "WAIT": DataType.UINT32}
    specs = [TensorSpec(name, kinds[name], array.shape) for name, array in arrays.items()]
    request = RequestTemplate(RequestHeader(model_name="repeat", inputs=specs), [*map(to_buffer, arrays.values())])

    async def body() -> None:
        async with opened(repository, "repeat") as target:
            exchange = await Sender(target, request).send(wants_body=True)
            assert (exchange.failure, exchange.responses, len(exchange.gaps_ns)) == ("", 2, 1)
            assert [int.from_bytes(data[0], "little") for _, data in exchange.body] == [4, 2]

    run(body())


def test_failures_have_a_kind(repository: Path) -> None:
    async def body() -> None:
        async with opened(repository, "slow_identity", request_timeout_s=0.05) as target:
            exchange = await Sender(target, template("missing", ROWS)).send()
            assert exchange.failure == "not_found"
            exchange = await Sender(target, template("slow_identity", ROWS)).send()
            assert (exchange.failure, exchange.failure_message) == ("timeout", "no response within 0.05 s")
            sender = Sender(target, template("slow_identity", ROWS))
            begun = [sender.begin() for _ in range(3)]
            await target.close()
            assert [each.result().failure for each in begun] == ["connection"] * 3
            assert (await sender.send()).failure == "connection"

    run(body())


def test_model_that_does_not_load_is_named(repository: Path) -> None:
    async def body() -> None:
        with pytest.raises(InferError, match="missing"):
            await make_target(ServerTarget(str(repository), Protocol.IN_PROCESS), ["missing"]).open(1)

    run(body())
