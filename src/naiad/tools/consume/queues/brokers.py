"""The queues of the brokers, by the scheme of their addresses."""

from naiad.tools.consume.queues.kafka.kafka_topics import KafkaSink, KafkaSource
from naiad.tools.consume.queues.message_queue import MessageSink, MessageSource
from naiad.tools.consume.queues.nats.nats_streams import NatsSink, NatsSource
from naiad.tools.consume.queues.queue_address import KAFKA, NATS, QueueAddress
from naiad.tools.consume.queues.redis_streams import RedisSink, RedisSource


def new_source(address: QueueAddress, group: str, consumer: str, claim_after_s: float) -> MessageSource:
    """Return a queue to read. Raises InferError(INVALID_ARG) without the package of its broker."""
    if address.broker == NATS:
        return NatsSource(address, group, claim_after_s)
    if address.broker == KAFKA:
        return KafkaSource(address, group, consumer, claim_after_s)
    return RedisSource(address, group, consumer, claim_after_s)


def new_sink(address: QueueAddress, max_length: int = 0) -> MessageSink:
    """Return a queue to write; `max_length` is about the most messages it keeps, 0 for no limit.

    Raises InferError(INVALID_ARG) without the package of its broker.
    """
    if address.broker == NATS:
        return NatsSink(address, max_length)
    if address.broker == KAFKA:
        return KafkaSink(address, max_length)
    return RedisSink(address, max_length)
