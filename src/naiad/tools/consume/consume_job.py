"""A consumer: which queues and model it connects, its limits, and what it has done."""

import socket
import uuid
from dataclasses import dataclass, field

from naiad.core.errors import invalid_argument
from naiad.tools.predict.prediction_job import PredictJob

DEFAULT_GROUP = "naiad"
DEFAULT_MAX_DELIVERIES = 5
DEFAULT_CLAIM_AFTER_S = 30.0


def _new_name() -> str:
    return f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True)
class ConsumeJob:
    """One model between two queues."""

    rows: PredictJob
    """The model, where it executes, and which columns are its inputs. `inputs` is the address of the queue that is
    read, `output` that of the answers."""
    group: str = DEFAULT_GROUP
    """Consumers of one group share the messages; each group gets all of them."""
    consumer: str = field(default_factory=_new_name)
    """Name of this consumer in its group; no other one has it at the same time."""
    dead_letters: str = ""
    """Address for messages without an answer, with the reasons; "" for the queue that is read, with `:dead`."""
    max_deliveries: int = DEFAULT_MAX_DELIVERIES
    """Deliveries after which a message without an answer becomes a dead letter."""
    max_in_flight: int = 0
    """Messages that are read and not acknowledged; 0 for what keeps the model busy."""
    claim_after_s: float = DEFAULT_CLAIM_AFTER_S
    """A message of a consumer that has not been heard of for so long is delivered to another one."""
    max_length: int = 0
    """About the most entries that the queue of answers keeps, the oldest leave; 0 for no limit."""
    until_empty: bool = False
    """End when all messages of the group are acknowledged."""

    @property
    def source(self) -> str:
        """Address of the queue that is read."""
        return self.rows.inputs[0]

    def check(self) -> None:
        """Raise InferError(INVALID_ARG) for a value that no model and no queue can have."""
        self.rows.check()
        for name, text in (("group", self.group), ("consumer", self.consumer)):
            if not text:
                raise invalid_argument(f"{name} is empty; expected a name")
        for name, value, least in (
            ("max_deliveries", self.max_deliveries, 1),
            ("max_in_flight", self.max_in_flight, 0),
            ("max_length", self.max_length, 0),
        ):
            if value < least:
                raise invalid_argument(f"{name} is {value}; expected {least} or more")
        if not self.claim_after_s >= 1:
            raise invalid_argument(f"claim_after_s is {self.claim_after_s:g}; expected 1 second or more")


@dataclass(frozen=True, slots=True)
class ConsumeProgress:
    """How far a consumer has come."""

    is_loading: bool = False
    answered: int = 0
    dead: int = 0
    """Messages that became dead letters."""
    in_flight: int = 0
    """Messages that are read and not acknowledged."""
    rate_per_s: float = 0.0
    """Answers of about the last seconds."""
    trouble: str = ""
    """Why the queue cannot be used now; "" while it can."""


@dataclass(frozen=True, slots=True)
class ConsumeSummary:
    """What a consumer did until its end."""

    answered: int
    dead: int
    redelivered: int
    """Messages that had been delivered before, to this or another consumer."""
    seconds: float
    unanswered: int = 0
    """Messages that were in flight at the end; the group delivers them again."""
