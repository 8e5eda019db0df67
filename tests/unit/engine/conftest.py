"""A loop that runs when told, and served models on it that are stopped when a test ends."""

from collections.abc import Iterator, Sequence

import pytest

from naiad.backend.api import Instance
from naiad.config.model_config_pb2 import ModelConfig
from naiad.engine.served_model import ServedModel
from naiad.scheduler.factory import create_scheduler
from naiad.telemetry.statistics import ModelStatistics
from support.engine_parts import ScriptedModel, Serve, StepLoop, config


@pytest.fixture
def loop() -> StepLoop:
    return StepLoop()


@pytest.fixture
def serve(loop: StepLoop) -> Iterator[Serve]:
    served: list[ServedModel] = []

    def make(instances: Sequence[Instance], made: ModelConfig | None = None) -> ServedModel:
        made = made or config()
        model = ServedModel(
            name="m",
            version=1,
            config=made,
            backend_model=ScriptedModel(),
            instances=instances,
            scheduler=create_scheduler(made),
            statistics=ModelStatistics("m", "1"),
            loop=loop,
        )
        served.append(model)
        return model

    yield make
    for model in served:
        model.stop(5.0)
