"""The trigger of the deferred sensor, which runs in Airflow's triggerer."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from naiad.client import ConnectionFailedError, InferError
from naiad.integrations.airflow.hooks import NaiadHook


class NaiadModelReadyTrigger(BaseTrigger):
    """Fires when a model is ready, or when the server refuses to say."""

    def __init__(self, conn_id: str, model: str, version: str = "", poll_interval_s: float = 10.0) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.model = model
        self.version = version
        self.poll_interval_s = poll_interval_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments."""
        return (
            f"{__name__}.NaiadModelReadyTrigger",
            {
                "conn_id": self.conn_id,
                "model": self.model,
                "version": self.version,
                "poll_interval_s": self.poll_interval_s,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Ask the server until the model is ready. Its restart is no error."""
        hook = NaiadHook(self.conn_id)
        try:
            async with await hook.aget_conn() as client:
                while True:
                    try:
                        if await client.is_model_ready(self.model, self.version):
                            break
                    except ConnectionFailedError as error:
                        self.log.info("%s", error.message)
                    await asyncio.sleep(self.poll_interval_s)
        except InferError as error:
            yield TriggerEvent({"error": str(hook.failure(error))})
        except AirflowException as error:
            yield TriggerEvent({"error": str(error)})
        else:
            yield TriggerEvent({"error": ""})
