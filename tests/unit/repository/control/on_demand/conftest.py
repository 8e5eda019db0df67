"""Scenes of models on demand that end with their test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.on_demand_scene import WAIT_S, Scene


@pytest.fixture
def scenes(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    made: list[Scene] = []

    def make(**options: object) -> Scene:
        made.append(Scene(tmp_path, **options))  # type: ignore[arg-type]  # the options of a scene
        return made[-1]

    yield make
    for scene in made:
        if scene.control is not None:
            scene.control.unload_all(WAIT_S)
