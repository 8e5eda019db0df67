"""Questions to the engine while a loading thread replaces the table of ready versions."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from naiad.core.errors import InferError
from naiad.engine.engine import Engine
from naiad.options.network.endpoints import MetricsOptions
from naiad.telemetry.metrics.metrics import Registry
from support.engine_parts import StepLoop, served_model


class Vanishing(dict[str, Any]):
    """A table that is replaced as soon as it has been read."""

    def __init__(self, content: dict[str, Any], replace: Callable[[], object]) -> None:
        super().__init__(content)
        self._replace = replace

    def get(self, key: str, default: Any = None) -> Any:
        found = super().get(key, default)
        self._replace()
        return found

    def __contains__(self, key: object) -> bool:
        found = super().__contains__(key)
        self._replace()
        return found

    def __iter__(self) -> Iterator[str]:
        names = list(super().__iter__())
        self._replace()
        return iter(names)


@pytest.fixture
def engine(loop: StepLoop) -> Iterator[Engine]:
    made = Engine(server_id="naiad", metrics=Registry(MetricsOptions()))
    served = served_model([], loop)
    table = made.models
    table.publish({"m": {1: served}}, "m")  # type: ignore[dict-item]  # as it is

    def unload() -> None:
        table.rows = dict.copy(table.rows)
        table.publish({}, "m")

    table.named = Vanishing(table.named, unload)
    table.rows = Vanishing(table.rows, unload)
    yield made
    served.stop(1.0)


def test_metadata_of_a_model_that_is_unloaded_meanwhile(engine: Engine) -> None:
    assert engine.views.model_metadata("m").versions == ["1"]
    with pytest.raises(InferError, match="unknown model"):
        engine.views.model_metadata("m")


def test_statistics_of_a_model_that_is_unloaded_meanwhile(engine: Engine) -> None:
    assert [row.name for row in engine.views.statistics("m")] == ["m"]
    assert engine.views.statistics() == []


def test_statistics_of_all_models_while_one_is_unloaded(engine: Engine) -> None:
    engine.models.named = {}
    assert [row.name for row in engine.views.statistics()] == ["m"]
    assert engine.views.is_ready() is False


def test_version_with_leading_zeros_is_served(engine: Engine) -> None:
    assert engine.inference.served("m", "001").version == "1"
    with pytest.raises(InferError, match="unknown model"):
        engine.inference.served("m", "01")
