"""A loop that runs in steps, and served models on it that are stopped when a test ends."""

from collections.abc import Iterator, Sequence

import pytest

from naiad.backend.api import Instance
from naiad.config.model_config_pb2 import ModelConfig
from naiad.engine.serving.served_model import ServedModel
from support.engine_parts import Serve, StepLoop, served_model


@pytest.fixture
def loop() -> StepLoop:
    return StepLoop()


@pytest.fixture
def serve(loop: StepLoop) -> Iterator[Serve]:
    served: list[ServedModel] = []

    def make(instances: Sequence[Instance], made: ModelConfig | None = None) -> ServedModel:
        model = served_model(instances, loop, made)
        served.append(model)
        return model

    yield make
    for model in served:
        model.stop(5.0)
