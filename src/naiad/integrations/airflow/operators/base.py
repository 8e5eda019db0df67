"""What all operators share: the connection, and how a failure becomes one of the task."""

from collections.abc import Sequence
from typing import Any, ClassVar

from airflow.sdk import BaseOperator

from naiad.integrations.airflow.hooks import DEFAULT_CONN_ID, NaiadHook


class NaiadOperator(BaseOperator):
    """An operator with a connection to a server."""

    template_fields: ClassVar[Sequence[str]] = ("conn_id",)
    ui_color: ClassVar[str] = "#d8f0ee"

    def __init__(self, *, conn_id: str = DEFAULT_CONN_ID, **settings: Any) -> None:
        """`settings` are arguments of `BaseOperator`: `task_id`, `retries`, ..."""
        super().__init__(**settings)
        self.conn_id = conn_id

    @property
    def hook(self) -> NaiadHook:
        """A hook of the connection."""
        return NaiadHook(self.conn_id)
