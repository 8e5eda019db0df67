"""Which operations are about all processes, and what they have to be asked."""

import asyncio

import pytest

from naiad.cluster.member.sharing import ClusterOperations
from naiad.cluster.messages import AskRollouts, AskStatistics, IsModelReady, IsReady, Query
from naiad.operations.models import HEALTH_CHECK, MODEL_READY, ROLLOUT, SERVER_READY, STATISTICS
from naiad.operations.operation import AnyOperation
from naiad.operations.requests import ModelVersion
from naiad.operations.table import OPERATIONS
from support.rollout_parts import member_engine


def asked_of_all(operation: AnyOperation, request: object) -> list[object]:
    """Return what the processes are asked before the operation."""
    asked: list[object] = []

    async def ask(query: object) -> object:
        asked.append(query)
        return False

    async def run() -> None:
        done = asyncio.Event()
        operations = ClusterOperations(*member_engine(), ask)
        if operations.gather(operation, request, done.set, print):
            await done.wait()

    asyncio.run(run())
    return asked


@pytest.mark.parametrize(
    ("operation", "request_", "query"),
    [
        (SERVER_READY, None, IsReady()),
        (HEALTH_CHECK, None, IsReady()),
        (MODEL_READY, ModelVersion("m"), IsModelReady("m", "")),
        (MODEL_READY, ModelVersion("m", "3"), IsModelReady("m", "3")),
        (STATISTICS, ModelVersion(""), AskStatistics()),
        (STATISTICS, ModelVersion("m"), AskStatistics()),
        (ROLLOUT, "m", AskRollouts()),
    ],
)
def test_operations_that_ask_all_processes(operation: AnyOperation, request_: object, query: Query) -> None:
    assert asked_of_all(operation, request_) == [query]


def test_other_operations_ask_no_process() -> None:
    asking = {SERVER_READY, HEALTH_CHECK, MODEL_READY, STATISTICS, ROLLOUT}
    for operation in OPERATIONS:
        if operation not in asking:
            assert asked_of_all(operation, None) == []
