"""`naiad consume` with a real NATS server and librdkafka's cluster for tests, by the same rules as with Redis."""

import asyncio
import base64
import json
import re
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from naiad.core.errors import InferError
from naiad.tools.consume import ConsumeJob, ConsumeProgress, ConsumeSummary, Consumption
from naiad.tools.predict.prediction_job import PredictJob
from support import onnx_models
from support.commands import END_S, RunningCommand, run_command
from support.kafka_cluster import KafkaCluster
from support.model_repository import write_identity, write_model
from support.nats_server import NatsServer
from support.waiting import until, wait_until

_GATHER = """
backend: "onnxruntime"
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_INT64 dims: [ 1 ] }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1, 2 ] }
"""
Broker = NatsServer | KafkaCluster


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_identity(root, extra="dynamic_batching { }")
    write_identity(root, "slow", parameters={"execute_delay_ms": "40"}, extra="dynamic_batching { }")
    write_model(root, "pick", _GATHER, {"1/model.onnx": onnx_models.gather()})
    return root


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path_factory.mktemp("nats"))
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def kafka_cluster() -> KafkaCluster:
    return KafkaCluster()


@pytest.fixture(params=["nats_server", "kafka_cluster"])
def broker(request: pytest.FixtureRequest) -> Broker:
    made: Broker = request.getfixturevalue(request.param)
    made.clear()
    return made


@pytest.fixture
def nats(nats_server: NatsServer) -> NatsServer:
    nats_server.clear()
    return nats_server


@pytest.fixture
def kafka(kafka_cluster: KafkaCluster) -> KafkaCluster:
    kafka_cluster.clear()
    return kafka_cluster


def texts(count: int) -> list[str]:
    return [json.dumps({"INPUT0": [number, 0, 0, 0], "number": number}) for number in range(count)]


def job_of(broker: Broker, models: Path, model: str = "identity", **given: Any) -> ConsumeJob:
    rows = PredictJob(str(models), model, (broker.address("in"),), broker.address("out"))
    return ConsumeJob(rows, **{"until_empty": True, "group": broker.group, **given})


def flags_of(broker: Broker, models: Path, *more: object) -> Sequence[object]:
    queues = ("--from", broker.address("in"), "--to", broker.address("out"), "--group", broker.group)
    return (*queues, "--model-repository", models, *more)


def consume(job: ConsumeJob) -> ConsumeSummary:
    async def run() -> ConsumeSummary:
        return await asyncio.wait_for(Consumption(job, lambda progress: None).run(), END_S)

    return asyncio.run(run())


def ids(broker: Broker) -> list[str]:
    return [each["id"] for each in broker.answers()]


def test_each_message_has_one_answer(broker: Broker, models: Path) -> None:
    sent = broker.send([*texts(100), {"INPUT0": "[1, 2, 3, 4]", "number": "x"}])
    done = run_command("consume", "identity", *flags_of(broker, models, "--until-empty", "--key", "number"))
    assert done.stdout.startswith("identity: 101 messages answered in ")
    found = {each["id"]: each for each in broker.answers()}
    assert sorted(found) == sorted(sent)
    assert found[sent[41]] == {"id": sent[41], "number": 41, "OUTPUT0": [41.0, 0.0, 0.0, 0.0]}
    assert found[sent[100]] == {"id": sent[100], "number": "x", "OUTPUT0": [1.0, 2.0, 3.0, 4.0]}
    assert broker.open_count() == 0


def test_messages_without_an_answer_become_dead_letters(broker: Broker, models: Path) -> None:
    good, bad = '{"INPUT0": 2}', '{"INPUT0": 9}'
    sent = broker.send([good, "{", bad, '{"INPUT0": [1, 2]}', good])
    summary = consume(job_of(broker, models, "pick", max_deliveries=2))
    assert (summary.answered, summary.dead, summary.redelivered) == (2, 3, 1)
    assert sorted(ids(broker)) == sorted([sent[0], sent[4]])
    letters = {each["naiad-id"]: each for each in broker.entries(broker.dead)}
    assert set(letters) == set(sent[1:4])
    assert "not a JSON document" in letters[sent[1]]["naiad-reason"]
    assert "indices element out of data bounds" in letters[sent[2]]["naiad-reason"]
    assert [letters[each]["naiad-deliveries"] for each in sent[1:4]] == ["1", "2", "1"]
    assert letters[sent[2]]["data"] == bad
    assert broker.open_count() == 0


def test_kills_lose_no_message(broker: Broker, models: Path) -> None:
    sent = broker.send(texts(400))
    limit = 32
    flags = flags_of(broker, models, "--max-in-flight", limit, "--claim-after", "6s", "--until-empty", "--quiet")
    running = [RunningCommand("consume", "slow", *flags) for _ in range(2)]
    try:
        for kill in range(1, 3):
            wait_until(lambda wanted=100 * kill: broker.count("out") >= wanted, timeout_s=END_S)
            running[kill - 1].process.kill()
            running.append(RunningCommand("consume", "slow", *flags))
        statuses = [each.process.wait(END_S) for each in running]
    finally:
        for each in running:
            each.process.kill()
            each.end()
    assert statuses == [-signal.SIGKILL] * 2 + [0, 0]
    found = ids(broker)
    assert set(found) == set(sent)
    assert len(found) - len(sent) <= 4 * limit  # at a kill, and where a partition changes its consumer
    assert broker.open_count() == 0


def test_an_ordered_end_leaves_nothing_in_flight(broker: Broker, models: Path) -> None:
    sent = broker.send(texts(600))
    running = RunningCommand("consume", "slow", *flags_of(broker, models))
    wait_until(lambda: broker.count("out"), timeout_s=END_S)
    running.process.terminate()
    done = running.end()
    assert done.returncode == 0, done.stderr
    found = ids(broker)
    assert 0 < len(found) < len(sent)
    assert broker.open_count() == len(sent) - len(found)


def test_messages_that_end_consumers_are_not_executed(broker: Broker, models: Path) -> None:
    sent = broker.send(texts(2))
    broker.deliver_in_vain(times=2)
    summary = consume(job_of(broker, models, max_deliveries=2, claim_after_s=6))
    assert (summary.answered, summary.dead) == (0, 2)
    letters = {each["naiad-id"]: each["naiad-reason"] for each in broker.entries(broker.dead)}
    assert letters == dict.fromkeys(sent, "delivered 2 times without an answer: its consumers ended before one")
    assert broker.open_count() == 0


def test_answers_that_no_queue_takes_become_dead_letters(broker: Broker, models: Path) -> None:
    values = np.random.default_rng(0).normal(size=150_000).astype(np.float32)
    wide = json.dumps({"INPUT0": {"b64": base64.b64encode(values.tobytes()).decode()}})
    broker.send([wide, *texts(1)])
    summary = consume(job_of(broker, models))
    assert (summary.answered, summary.dead) == (1, 1)
    (letter,) = broker.entries(broker.dead)
    assert re.search(r"the answer has \d+ bytes; .* takes \d+", letter["naiad-reason"])


def test_a_server_that_comes_back_gets_all(nats: NatsServer, models: Path) -> None:
    sent = nats.send(texts(400))
    troubles: list[str] = []
    seen = threading.Event()

    def show(progress: ConsumeProgress) -> None:
        if progress.trouble and not seen.is_set():
            troubles.append(progress.trouble)
            seen.set()

    consumption = Consumption(job_of(nats, models, "slow", claim_after_s=2), show)

    async def main() -> ConsumeSummary:
        run = asyncio.create_task(consumption.run())
        while not await asyncio.to_thread(nats.count, "out"):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(nats.stop)
        await until(seen.is_set)
        await asyncio.to_thread(nats.start)
        return await asyncio.wait_for(run, END_S)

    asyncio.run(main())
    assert f"NATS at 127.0.0.1:{nats.port}" in troubles[0]
    assert set(ids(nats)) == set(sent)
    assert nats.open_count() == 0


def test_a_stream_that_is_deleted_ends_the_consumer(nats: NatsServer, models: Path) -> None:
    nats.send(texts(5))

    async def main() -> None:
        run = asyncio.create_task(Consumption(job_of(nats, models, until_empty=False), lambda progress: None).run())
        while await asyncio.to_thread(nats.count, "out") < 5:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(nats.delete, "in")
        await asyncio.wait_for(run, END_S)

    with pytest.raises(InferError, match=r"the stream 'in' at 127\.0\.0\.1:.* was deleted"):
        asyncio.run(main())


def test_answers_have_the_key_of_their_message(kafka: KafkaCluster, models: Path) -> None:
    kafka.send([*texts(1), "{"], key=b"user 7")
    summary = consume(job_of(kafka, models))
    assert (summary.answered, summary.dead) == (1, 1)
    assert [each["key"] for each in kafka.entries("out") + kafka.entries("in-dead")] == ["user 7"] * 2


def test_a_wrong_start_leaves_nothing(nats: NatsServer, kafka: KafkaCluster, models: Path) -> None:
    for source, sink, reason in (
        ("nats://127.0.0.1:1/in", nats.address("out"), r"NATS at 127\.0\.0\.1:1: .*[Cc]onnect"),
        (nats.address("in"), nats.address("in").replace("127.0.0.1", "localhost"), "must differ"),
        (nats.address("in"), kafka.address("none"), "there is no topic 'test.*none'"),
        (kafka.address("none"), nats.address("out"), "there is no topic 'test.*none'"),
    ):
        rows = PredictJob(str(models), "identity", (source,), sink)
        with pytest.raises(InferError, match=reason):
            consume(ConsumeJob(rows, until_empty=True))
    assert nats.count("in") == nats.count("out") == 0
