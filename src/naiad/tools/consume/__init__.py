"""A model over the messages of a queue: read, execute, answer, acknowledge."""

from naiad.tools.consume.consume_job import ConsumeJob, ConsumeProgress, ConsumeSummary
from naiad.tools.consume.consumption import Consumption

__all__ = ["ConsumeJob", "ConsumeProgress", "ConsumeSummary", "Consumption"]
