"""Scenes of models on demand that end with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from naiad.repository.control.on_demand import on_demand_models
from support.on_demand_scene import WAIT_S, Scene


@pytest.fixture
def scenes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Scene]]:
    # A sweep of its own looks at memory that a load has taken and not noted yet: the tests call it.
    monkeypatch.setattr(on_demand_models, "_SWEEP_S", 3600.0)
    made: list[Scene] = []

    def make(**options: object) -> Scene:
        made.append(Scene(tmp_path, **options))  # type: ignore[arg-type]  # the options of a scene
        return made[-1]

    yield make
    for scene in made:
        if scene.control is not None:
            scene.control.unload_all(WAIT_S)
