"""Brokers of messages behind one interface: streams of Redis and NATS JetStream, topics of Kafka."""
