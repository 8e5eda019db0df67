"""`naiad consume` with a real Redis: answers, dead letters, kills, orders to end, a Redis that is away."""

import asyncio
import dataclasses
import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from redis import Redis as RedisClient

from naiad.core.errors import InferError
from naiad.tools.consume import ConsumeJob, ConsumeProgress, ConsumeSummary, Consumption
from naiad.tools.predict.prediction_job import PredictJob
from support import onnx_models
from support.commands import END_S, RunningCommand, run_command
from support.model_repository import write_identity, write_model
from support.redis_server import Redis
from support.server_process import ServerProcess
from support.waiting import until, wait_until

_GATHER = """
backend: "onnxruntime"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1, 2 ] }
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_identity(root, extra="dynamic_batching { }")
    write_identity(root, "slow", parameters={"execute_delay_ms": "40"}, extra="dynamic_batching { }")
    write_model(root, "pick", _GATHER, {"1/model.onnx": onnx_models.gather()})
    return root


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    made = Redis(tmp_path_factory.mktemp("redis"))
    made.start("--appendonly", "yes", "--appendfsync", "no")
    yield made
    made.stop()


@pytest.fixture
def redis(broker: Redis) -> Iterator[RedisClient]:
    with RedisClient("127.0.0.1", broker.port) as client:
        client.flushall()
        yield client


def address(redis: RedisClient, stream: str) -> str:
    return f"redis://127.0.0.1:{redis.connection_pool.connection_kwargs['port']}/{stream}"


def rows_of(redis: RedisClient, models: object, model: str = "identity", **given: object) -> PredictJob:
    return PredictJob(str(models), model, (address(redis, "in"),), address(redis, "out"), **given)


def send(redis: RedisClient, count: int) -> list[bytes]:
    """Add messages; return their ids."""
    pipeline = redis.pipeline()
    for number in range(count):
        pipeline.xadd("in", {"data": json.dumps({"INPUT0": [number, 0, 0, 0], "number": number})})
    return pipeline.execute()


def consume(job: ConsumeJob, during: Callable[[Consumption], object] | None = None) -> ConsumeSummary:
    """Consume until the queue is empty; `during` runs in another thread."""
    consumption = Consumption(job, lambda progress: None)

    async def run() -> ConsumeSummary:
        other = asyncio.create_task(asyncio.to_thread(during, consumption)) if during else None
        summary = await asyncio.wait_for(consumption.run(), END_S)
        if other is not None:
            await other
        return summary

    return asyncio.run(run())


def answers(redis: RedisClient) -> list[bytes]:
    """Return the ids of the messages that are answered, in the order of the answers."""
    return [fields[b"id"] for _, fields in redis.xrange("out")]


def dead(redis: RedisClient) -> dict[bytes, bytes]:
    """Return the reasons of dead letters by the id of the message."""
    return {fields[b"naiad-id"]: fields[b"naiad-reason"] for _, fields in redis.xrange("in:dead")}


def test_each_message_has_one_answer(redis: RedisClient, models: Path, server: ServerProcess) -> None:
    sent = send(redis, 100)
    raw = np.array([7, 8, 9, 10], np.float32).tobytes()
    sent += [redis.xadd("in", {"INPUT0": "[1, 2, 3, 4]", "number": "x"}), redis.xadd("in", {"INPUT0.raw": raw})]
    flags = ("--from", address(redis, "in"), "--to", address(redis, "out"), "--until-empty", "--key", "number")
    done = run_command("consume", "identity", *flags, "--model-repository", models, "--max-length", 1000)
    assert done.stdout.startswith("identity: 102 messages answered in ")
    found = {fields[b"id"]: json.loads(fields[b"data"]) for _, fields in redis.xrange("out")}
    assert list(found) == sent
    assert found[sent[41]] == {"number": 41, "OUTPUT0": [41.0, 0.0, 0.0, 0.0]}
    assert found[sent[100]] == {"number": "x", "OUTPUT0": [1.0, 2.0, 3.0, 4.0]}
    assert found[sent[101]] == {"number": None, "OUTPUT0": [7.0, 8.0, 9.0, 10.0]}
    assert redis.xinfo_consumers("in", "naiad") == []
    other = run_command("consume", "identity", *flags, "--url", f"grpc://{server.grpc_url}", "--group", "second")
    assert "102 messages answered" in other.stdout
    assert answers(redis) == sent * 2


def test_messages_without_an_answer_become_dead_letters(redis: RedisClient, models: Path) -> None:
    good, bad = '{"INPUT0": 2}', '{"INPUT0": 9}'
    ids = [redis.xadd("in", {"data": text}) for text in (good, "{", bad, '{"INPUT0": [1, 2]}', good)]
    summary = consume(ConsumeJob(rows_of(redis, models, "pick"), max_deliveries=2, until_empty=True))
    assert (summary.answered, summary.dead, summary.redelivered) == (2, 3, 1)
    assert set(answers(redis)) == {ids[0], ids[4]}
    letters = {fields[b"naiad-id"]: fields for _, fields in redis.xrange("in:dead")}
    assert set(letters) == set(ids[1:4])
    assert b"not a JSON document" in letters[ids[1]][b"naiad-reason"]
    assert b"indices element out of data bounds" in letters[ids[2]][b"naiad-reason"]
    assert b"expected shape [1]" in letters[ids[3]][b"naiad-reason"]
    assert [letters[each][b"naiad-deliveries"] for each in ids[1:4]] == [b"1", b"2", b"1"]
    assert letters[ids[2]][b"data"] == bad.encode()


def test_messages_that_end_consumers_are_not_executed(redis: RedisClient, models: Path) -> None:
    ids = send(redis, 3)
    redis.xgroup_create("in", "naiad", id="0")
    redis.xreadgroup("naiad", "gone", {"in": ">"}, count=2)
    redis.xclaim("in", "naiad", "gone", 0, [ids[0]], idle=10_000, retrycount=5)
    redis.xclaim("in", "naiad", "gone", 0, [ids[1]], idle=10_000, retrycount=1)
    summary = consume(ConsumeJob(rows_of(redis, models), claim_after_s=1, until_empty=True))
    assert (summary.answered, summary.dead) == (2, 1)
    assert dead(redis) == {ids[0]: b"delivered 5 times without an answer: its consumers ended before one"}
    assert sorted(answers(redis)) == ids[1:]


def test_deleted_messages_leave_the_group(redis: RedisClient, models: Path) -> None:
    ids = send(redis, 3)
    redis.xgroup_create("in", "naiad", id="0")
    redis.xreadgroup("naiad", "gone", {"in": ">"})
    redis.xclaim("in", "naiad", "gone", 0, ids, idle=10_000)
    redis.xdel("in", ids[1])
    summary = consume(ConsumeJob(rows_of(redis, models), claim_after_s=1, until_empty=True))
    assert (summary.answered, summary.dead) == (2, 0)
    assert redis.xpending("in", "naiad")["pending"] == 0


def test_kills_lose_no_message(redis: RedisClient, models: Path) -> None:
    sent = send(redis, 600)
    limit = 32
    flags = ("--from", address(redis, "in"), "--to", address(redis, "out"), "--model-repository", models)
    flags += ("--max-in-flight", limit, "--claim-after", "5s", "--until-empty", "--quiet")
    running = [RunningCommand("consume", "slow", *flags) for _ in range(2)]
    try:
        for kill in range(1, 4):
            wait_until(lambda wanted=120 * kill: redis.xlen("out") >= wanted, timeout_s=END_S)
            running[kill - 1].process.kill()
            running.append(RunningCommand("consume", "slow", *flags))
        statuses = [each.process.wait(END_S) for each in running]
    finally:
        for each in running:
            each.process.kill()
            each.end()
    assert statuses == [-signal.SIGKILL] * 3 + [0, 0]
    found = answers(redis)
    assert set(found) == set(sent)
    assert len(found) - len(sent) <= 3 * limit
    assert redis.xpending("in", "naiad")["pending"] == 0


def test_an_ordered_end_leaves_nothing_in_flight(redis: RedisClient, models: Path) -> None:
    sent = send(redis, 600)
    flags = ("--from", address(redis, "in"), "--to", address(redis, "out"), "--model-repository", models)
    running = RunningCommand("consume", "slow", *flags)
    wait_until(lambda: redis.xlen("out"), timeout_s=END_S)
    running.process.terminate()
    done = running.end()
    assert done.returncode == 0, done.stderr
    found = answers(redis)
    assert 0 < len(found) < len(sent)
    assert found == sent[: len(found)]
    assert redis.xpending("in", "naiad")["pending"] == 0
    assert redis.xinfo_groups("in")[0]["last-delivered-id"] == found[-1]


def test_a_redis_that_comes_back_gets_all_answers(redis: RedisClient, broker: Redis, models: Path) -> None:
    sent = send(redis, 400)
    troubles: list[str] = []
    seen = threading.Event()

    def show(progress: ConsumeProgress) -> None:
        if progress.trouble and not seen.is_set():
            troubles.append(progress.trouble)
            seen.set()

    consumption = Consumption(ConsumeJob(rows_of(redis, models, "slow"), until_empty=True, claim_after_s=1), show)

    async def main() -> ConsumeSummary:
        run = asyncio.create_task(consumption.run())
        while not await asyncio.to_thread(redis.xlen, "out"):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(broker.stop)
        await until(seen.is_set)
        await asyncio.to_thread(broker.start, "--appendonly", "yes", "--appendfsync", "no")
        return await asyncio.wait_for(run, END_S)

    asyncio.run(main())
    assert f"Redis at 127.0.0.1:{broker.port}" in troubles[0]
    assert set(answers(redis)) == set(sent)
    assert redis.xpending("in", "naiad")["pending"] == 0


def test_a_full_redis_is_waited_for(redis: RedisClient, models: Path) -> None:
    sent, troubles, is_full = send(redis, 400), [], threading.Event()

    def show(progress: ConsumeProgress) -> None:
        if progress.answered and not is_full.is_set():
            is_full.set()
            redis.config_set("maxmemory", 1)
        if progress.trouble and not troubles:
            troubles.append(progress.trouble)
            redis.config_set("maxmemory", 0)

    consumption = Consumption(ConsumeJob(rows_of(redis, models, "slow"), until_empty=True, claim_after_s=1), show)
    try:
        asyncio.run(asyncio.wait_for(consumption.run(), END_S))
    finally:
        redis.config_set("maxmemory", 0)
    assert "used memory > 'maxmemory'" in troubles[0]
    assert set(answers(redis)) == set(sent)


def test_keys_of_any_value_end_no_consumer(redis: RedisClient, models: Path) -> None:
    nested = "[" * 300 + "]" * 300
    ids = [redis.xadd("in", {"data": f'{{"INPUT0": [1, 2, 3, 4], "number": {key}}}'}) for key in (nested, 1 << 70, 1)]
    summary = consume(ConsumeJob(rows_of(redis, models, keys=("number",)), until_empty=True))
    assert summary.answered == 3
    assert sorted(answers(redis)) == ids


def test_one_queue_under_two_hosts_is_refused(redis: RedisClient, models: Path) -> None:
    rows = rows_of(redis, models)
    rows = dataclasses.replace(rows, output=rows.inputs[0].replace("127.0.0.1", "localhost"))
    with pytest.raises(InferError, match="must differ"):
        consume(ConsumeJob(rows, until_empty=True))


def test_a_queue_that_is_deleted_ends_the_consumer(redis: RedisClient, models: Path) -> None:
    send(redis, 5)

    def delete(consumption: Consumption) -> None:
        wait_until(lambda: redis.xlen("out") == 5)
        redis.delete("in")

    with pytest.raises(InferError, match=r"the stream 'in' at 127\.0\.0\.1:.* was deleted"):
        consume(ConsumeJob(rows_of(redis, models)), delete)


def test_a_wrong_start_leaves_nothing(redis: RedisClient, models: Path) -> None:
    redis.set("text", "x")
    here, free = address(redis, "in"), "redis://127.0.0.1:1/in"
    repository = ("--model-repository", models)
    for flags, reason in (
        (("--from", free, "--to", here, *repository), "Redis at 127.0.0.1:1: .*connect"),
        (("--from", here, "--to", here, *repository), "must differ"),
        (("--from", here, "--to", address(redis, "text"), *repository), "is a string, not a stream"),
        (("--from", here, "--to", "amqp://a/b", *repository), "no known scheme"),
        (("--from", here, "--to", address(redis, "out"), "--url", "grpc://127.0.0.1:1"), "no connection to grpc://"),
        (("--from", here, "--to", address(redis, "out"), "--url", "models"), "--url is 'models'"),
        (("--from", here, "--to", address(redis, "out"), *repository, "--claim-after", "0"), "--claim-after is 0"),
    ):
        done = run_command("consume", "identity", *flags, status=None)
        assert done.returncode == (1 if "not a stream" in reason else 2), (reason, done.stderr)
        assert re.search(reason, done.stderr), done.stderr
    assert redis.keys() == [b"text"]
