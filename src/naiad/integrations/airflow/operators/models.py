"""Operators that load and unload a model of the server's repository."""

from collections.abc import Sequence
from typing import Any, ClassVar

from naiad.integrations.airflow.operators.base import NaiadOperator


class NaiadLoadModelOperator(NaiadOperator):
    """Loads a model of the server's repository, or reloads it if its files have changed.

    The server needs `--model-control-mode=explicit`. `config` is JSON that overrides the configuration in the
    repository. The task ends when the model is ready; a load that fails leaves the versions that were served.
    """

    template_fields: ClassVar[Sequence[str]] = ("conn_id", "model", "config")

    def __init__(self, *, model: str, config: str = "", timeout_s: float = 600.0, **settings: Any) -> None:
        super().__init__(**settings)
        self.model = model
        self.config = config
        self.timeout_s = timeout_s

    def execute(self, context: Any) -> None:
        """Load the model. Raises AirflowException."""
        self.hook.run(lambda client: client.load(self.model, config=self.config, timeout_s=self.timeout_s))
        self.log.info("model '%s' is ready", self.model)


class NaiadUnloadModelOperator(NaiadOperator):
    """Unloads a model. The task ends when its requests have ended; an unknown model is no error.

    `unload_dependents`: also the members that an ensemble has loaded.
    """

    template_fields: ClassVar[Sequence[str]] = ("conn_id", "model")

    def __init__(
        self, *, model: str, unload_dependents: bool = False, timeout_s: float = 600.0, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.model = model
        self.unload_dependents = unload_dependents
        self.timeout_s = timeout_s

    def execute(self, context: Any) -> None:
        """Unload the model. Raises AirflowException."""
        self.hook.run(
            lambda client: client.unload(
                self.model, unload_dependents=self.unload_dependents, timeout_s=self.timeout_s
            )
        )
        self.log.info("model '%s' is unloaded", self.model)
