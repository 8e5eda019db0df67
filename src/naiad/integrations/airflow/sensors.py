"""The sensor that waits until a model is ready."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

from airflow.sdk import BaseSensorOperator
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException

from naiad.client import Client, ConnectionFailedError
from naiad.integrations.airflow.hooks import DEFAULT_CONN_ID, NaiadHook
from naiad.integrations.airflow.triggers import NaiadModelReadyTrigger


class NaiadModelReadySensor(BaseSensorOperator):
    """Waits until a model, or one version of it, executes requests.

    A server that cannot be reached, for example while it restarts, is not ready. With `deferrable` the triggerer
    waits, and no worker is busy.
    """

    template_fields: ClassVar[Sequence[str]] = ("conn_id", "model", "version")
    ui_color: ClassVar[str] = "#d8f0ee"

    def __init__(
        self,
        *,
        model: str,
        version: str = "",
        conn_id: str = DEFAULT_CONN_ID,
        deferrable: bool | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are arguments of `BaseSensorOperator`: `poke_interval`, `timeout`, `mode`, ..."""
        super().__init__(**settings)
        self.model = model
        self.version = version
        self.conn_id = conn_id
        self.deferrable = (
            conf.getboolean("operators", "default_deferrable", fallback=False) if deferrable is None else deferrable
        )

    def execute(self, context: Any) -> Any:
        """Wait, here or in the triggerer. Raises AirflowSensorTimeout, AirflowException."""
        if not self.deferrable:
            return super().execute(context)
        if not self.poke(context):
            self.defer(
                timeout=timedelta(seconds=self.timeout),
                trigger=NaiadModelReadyTrigger(self.conn_id, self.model, str(self.version), self.poke_interval),
                method_name="execute_complete",
            )
        return None

    def execute_complete(self, context: Any, event: dict[str, str]) -> None:
        """Take the trigger's event. Raises AirflowFailException with the reason."""
        if event["error"]:
            raise AirflowFailException(event["error"])

    def poke(self, context: Any) -> bool:
        """Return whether the model is ready. Raises AirflowException for a server that refuses the request."""
        return NaiadHook(self.conn_id).run(self._is_ready)

    async def _is_ready(self, client: Client) -> bool:
        try:
            return await client.is_model_ready(self.model, str(self.version))
        except ConnectionFailedError as error:
            self.log.info("%s", error.message)
            return False
