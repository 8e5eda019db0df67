"""Batch transforms: what happens to the requests of a batch between its scheduler and its instance.

The executor holds one list of transforms. Before the execution it calls `prepare` of each, in order. After it, it
calls `settle` of each, in reverse order; if the execution fails, `restore` of each. A transform notes the headers
that it replaces in `Batch.replaced`, so that undoing a batch twice, or one that was prepared in part, is harmless.
"""

from collections.abc import Sequence
from typing import Protocol

from naiad.core.batch import Batch
from naiad.core.response import InferResponse


class BatchTransform(Protocol):
    """Changes the requests of a batch before its execution, and the responses back."""

    def prepare(self, batch: Batch) -> None:
        """Change the requests. Raises InferError, which fails the batch."""

    def settle(self, batch: Batch, responses: Sequence[InferResponse]) -> Sequence[InferResponse]:
        """Undo `prepare` and return the responses for the clients. Raises InferError, which fails the batch."""

    def restore(self, batch: Batch) -> None:
        """Undo `prepare`; does nothing if it is undone."""
