"""The operator that moves requests from one version of a model to another: canary, promotion, rollback."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from naiad.client import Client, InferError
from naiad.config.rollout.rollout_declaration import FULL_PERCENT
from naiad.integrations.airflow.operators.base import NaiadOperator

ACTIONS = ("canary", "pin", "promote", "rollback", "allow", "end")


class NaiadRolloutOperator(NaiadOperator):
    """Changes how requests without a version are split between two versions of a model, as `naiad rollout` does.

    - `pin`: `version` gets all requests, also when newer versions are published. A rollback undoes it.
    - `canary`: `version` gets `weight` percent of the requests. With `steps` the server raises the weight every
      `every_s` seconds, and after 100 the canary is promoted. `guard` has the limits that roll it back.
    - `promote`: the canary gets all requests. `rollback`: it gets none, and is refused from then on. `allow`:
      `version` may get requests again. `end`: the newest version that was not refused gets all.

    With `steps` the task waits for the end, and fails if the canary was rolled back. The connection must be HTTP.
    Returns the rollout as the server describes it.
    """

    template_fields: ClassVar[Sequence[str]] = ("conn_id", "model", "version", "weight", "guard")

    def __init__(  # noqa: PLR0913 - keyword-only, as in a DAG
        self,
        *,
        model: str,
        action: str,
        version: int | str | None = None,
        weight: float | str | None = None,
        steps: Sequence[float] = (),
        every_s: float = 60.0,
        guard: Mapping[str, float] | None = None,
        sticky: str = "",
        shadow: float = 0.0,
        wait: bool = True,
        poll_interval_s: float = 5.0,
        timeout_s: float = 86_400.0,
        **settings: Any,
    ) -> None:
        """`timeout_s` is the most that the task waits for the end of the steps."""
        super().__init__(**settings)
        self.model = model
        self.action = action
        self.version = version
        self.weight = weight
        self.steps = steps
        self.every_s = every_s
        self.guard = guard
        self.sticky = sticky
        self.shadow = shadow
        self.wait = wait
        self.poll_interval_s = poll_interval_s
        self.timeout_s = timeout_s

    def execute(self, context: Any) -> dict[str, Any] | None:
        """Change the rollout. Raises AirflowException, AirflowFailException for fields that do not fit together."""
        if self.action not in ACTIONS:
            raise AirflowFailException(f"action is '{self.action}'; expected {', '.join(ACTIONS)}")
        if self.action == "end":
            self.hook.run(lambda client: client.end_rollout(self.model))
            return None
        fields = self._fields()
        waits = self.action == "canary" and bool(self.steps) and self.wait
        if waits and self.steps[-1] != FULL_PERCENT:
            raise AirflowFailException(
                f"the last of steps is {self.steps[-1]}, with which the canary is never promoted; expected "
                f"{FULL_PERCENT:g}, or wait=False"
            )
        status = self.hook.run(lambda client: client.change_rollout(self.model, fields))
        self.log.info("rollout of model '%s': %s", self.model, status["note"])
        if waits:
            status = self.hook.run(self._wait)
        return status

    def _fields(self) -> dict[str, Any]:
        """Return what the server gets. Raises AirflowFailException for a missing version or weight."""
        if self.action in ("promote", "rollback"):
            return {"action": self.action}
        version = self._number("version", self.version, int)
        if self.action in ("pin", "allow"):
            return {"to" if self.action == "pin" else "allow": version}
        fields: dict[str, Any] = {"canary": version}
        if self.steps:
            fields["steps"] = {"weights": list(self.steps), "every_s": self.every_s}
        else:
            fields["weight"] = self._number("weight", self.weight, float)
        optional = {"guard": dict(self.guard or {}), "sticky": self.sticky, "shadow": self.shadow}
        return fields | {name: value for name, value in optional.items() if value}

    def _number(self, name: str, value: Any, kind: type[int] | type[float]) -> int | float:
        try:
            return kind(value)
        except (TypeError, ValueError):
            raise AirflowFailException(
                f"action '{self.action}' of model '{self.model}': {name} is {value!r}; expected a number"
            ) from None

    async def _wait(self, client: Client) -> dict[str, Any]:
        """Wait until the steps have ended. Raises AirflowException after a rollback."""
        version = int(str(self.version))
        try:
            async with asyncio.timeout(self.timeout_s):
                while True:
                    status = await self._status(client)
                    rollout = status["rollout"]
                    if rollout is not None and rollout["stable"] == version:
                        return status
                    # Without a rollout another command has ended it: the version may be refused, or not proven.
                    if rollout is None or rollout.get("canary") != version or status["step"] is None:
                        raise self._failure(status)
                    await asyncio.sleep(self.poll_interval_s)
        except TimeoutError:
            raise AirflowException(
                f"the rollout of model '{self.model}' has not ended within {self.timeout_s:g} s; it goes on"
            ) from None

    async def _status(self, client: Client) -> dict[str, Any]:
        try:
            return await client.rollout(self.model)
        except InferError as error:
            raise self.hook.failure(error) from error

    def _failure(self, status: Mapping[str, Any]) -> AirflowException:
        side = status.get("canary") or {}
        figures = f" after {side['requests']} requests with {side['errors']} errors" if side else ""
        return AirflowException(
            f"version {self.version} of model '{self.model}' was not promoted{figures}: {status['note']}"
        )
