"""What a worker says of its model."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.tools.predict.distributed import part_worker
from naiad.tools.predict.distributed.part import OpenedModel
from naiad.tools.predict.distributed.part_worker import PartWorker

NAMES = [f"parameter_{number}" for number in range(20)]


class Endpoint:
    """Has a configuration whose parameters were set in an order."""

    def __init__(self, names: list[str]) -> None:
        self._config = ModelConfig(name="m")
        for name in names:
            self._config.parameters[name].string_value = name

    async def metadata(self) -> None:
        return None

    async def config(self) -> ModelConfig:
        return self._config


def opened(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> Any:
    """Return what a worker says that has this configuration."""

    @asynccontextmanager
    async def open_endpoint(job):
        yield Endpoint(names)

    monkeypatch.setattr(part_worker, "open_endpoint", open_endpoint)
    monkeypatch.setattr(part_worker, "read_signature", lambda job, metadata, config: None)
    monkeypatch.setattr(part_worker, "_enter", lambda folder, job: None)
    job: Any = None
    return asyncio.run(PartWorker(job, "", ()).open())


def test_order_of_parameters_makes_no_other_model(monkeypatch):
    first, second = (opened(monkeypatch, names) for names in (NAMES, NAMES[::-1]))
    assert isinstance(first, OpenedModel)
    assert first == second
