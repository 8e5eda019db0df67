"""What clients of Kafka share: settings, and what errors mean for a queue."""

from typing import Any

from naiad.core.errors import InferError, invalid_argument
from naiad.tools.consume.queues.message_queue import QueueAwayError, QueueLostError
from naiad.tools.consume.queues.queue_address import MECHANISM, QueueAddress

TIMEOUT_S = 10.0
"""For a call."""
DATA = b"data"
"""Field with the value of a message."""


class KafkaAccess:
    """One cluster and topic, for all clients of one queue."""

    def __init__(self, address: QueueAddress) -> None:
        """Raises InferError(INVALID_ARG) without the `confluent-kafka` package."""
        try:
            import confluent_kafka
        except ImportError:
            raise invalid_argument(
                f"{address} needs the 'confluent-kafka' package: pip install 'naiad[kafka]'"
            ) from None
        self.library: Any = confluent_kafka
        self.address = address
        self.error = confluent_kafka.KafkaException
        kinds: Any = confluent_kafka.KafkaError
        self._denied = {
            kinds._AUTHENTICATION,
            kinds.SASL_AUTHENTICATION_FAILED,
            kinds.TOPIC_AUTHORIZATION_FAILED,
            kinds.GROUP_AUTHORIZATION_FAILED,
            kinds.CLUSTER_AUTHORIZATION_FAILED,
        }
        self._missing = {kinds.UNKNOWN_TOPIC_OR_PART, kinds._UNKNOWN_TOPIC, kinds._UNKNOWN_PARTITION}
        self._wrong = {kinds._INVALID_ARG, kinds.MSG_SIZE_TOO_LARGE, kinds.INVALID_SESSION_TIMEOUT, kinds._SSL}
        self._last_denied = ""

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings that each client needs."""
        address = self.address
        protocol = ("SASL_" if address.user else "") + ("SSL" if address.is_tls else "PLAINTEXT")
        settings: dict[str, Any] = {
            "bootstrap.servers": address.server,
            "security.protocol": protocol,
            "socket.timeout.ms": int(TIMEOUT_S * 1000),
            "error_cb": self._note,
            "log_level": 0,  # errors come as such; the library writes them to stderr too
        }
        if address.user:
            settings |= {
                "sasl.mechanism": address.options.get(MECHANISM, "PLAIN"),
                "sasl.username": address.user,
                "sasl.password": address.password,
            }
        return settings

    def _note(self, error: Any) -> None:
        if error.code() in self._denied:
            self._last_denied = error.str()

    def cluster(self, client: Any) -> str:
        """Return the id of the cluster; blocks. Raises InferError without the topic."""
        try:
            # With the name, a broker may make the topic for a producer that asks.
            found = client.list_topics(timeout=TIMEOUT_S)
        except self.error as error:
            raise self.named(error.args[0]) from None
        topic = found.topics.get(self.address.name)
        if topic is None or topic.error is not None:
            if topic is not None and topic.error.code() in self._denied:
                raise self.named(topic.error)
            raise invalid_argument(
                f"there is no topic '{self.address.name}' at {self.address.server}; make it, with as many partitions "
                "as consumers may share it"
            )
        return str(found.cluster_id or self.address.server)

    def partitions(self, client: Any) -> list[int]:
        """Return the partitions of the topic; blocks."""
        try:
            return sorted(
                client.list_topics(self.address.name, timeout=TIMEOUT_S).topics[self.address.name].partitions
            )
        except self.error as error:
            raise self.named(error.args[0]) from None

    def named(self, error: Any) -> InferError:
        """Return an error of the library as one of the queue."""
        code, text = error.code(), error.str().rstrip(".")
        if code in self._denied or self._last_denied:
            denied, self._last_denied = self._last_denied or text, ""
            return invalid_argument(
                f"{self.address}: {denied}; write {self.address.scheme}://USER:PASSWORD@HOST/TOPIC"
            )
        if code in self._missing:
            return QueueLostError(f"the topic '{self.address.name}' at {self.address.server} was deleted: {text}")
        if code in self._wrong:
            return invalid_argument(f"{self.address}: {text}")
        return QueueAwayError(f"Kafka at {self.address.server}: {text}")
