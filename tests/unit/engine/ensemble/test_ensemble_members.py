"""Why an ensemble cannot have its members, in Triton's words."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from naiad.config.model_config_pb2 import ModelConfig
from naiad.core.errors import InferError, not_found
from naiad.core.model import IndexEntry, ModelState
from naiad.engine.ensemble.ensemble_graph import find_members


class Router:
    """Serves version 1 of `served`; the index has these rows."""

    def __init__(self, served: Sequence[str], rows: Sequence[IndexEntry]) -> None:
        self._served = served
        self._rows = rows

    def served(self, name: str, version: str = "") -> Any:
        if name in self._served and version in ("", "1"):
            return SimpleNamespace(config=ModelConfig(name=name))
        raise not_found(f"Request for unknown model: '{name}' is not there")

    def index(self) -> Sequence[IndexEntry]:
        return self._rows


def ensemble(version: int = -1) -> ModelConfig:
    config = ModelConfig(name="e")
    config.ensemble_scheduling.step.add(model_name="a", model_version=version)
    return config


READY = IndexEntry("a", "1", ModelState.READY)
FAILED = IndexEntry("a", "1", ModelState.UNAVAILABLE, "Internal: no luck")


def test_members_are_found_by_name() -> None:
    router = Router(["a"], [READY])
    assert find_members(ensemble(1), router, router.index) == {"a": ModelConfig(name="a")}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "rows", "words"),
    [
        (2, [READY], "ensemble 'e' depends on 'a' whose required version 2 is not loaded"),
        (-1, [], "ensemble e contains models that are not available or ambiguous: a"),
        (-1, [IndexEntry("a")], "ensemble e contains models that are not available or ambiguous: a"),
        (
            -1,
            [FAILED],
            "ensemble 'e' depends on 'a' which has no loaded version. Model 'a' loading failed with error: Internal: "
            "no luck",
        ),
    ],
)
def test_missing_member_is_named(version: int, rows: Sequence[IndexEntry], words: str) -> None:
    router = Router(["a"] if READY in rows else [], rows)
    with pytest.raises(InferError) as caught:
        find_members(ensemble(version), router, router.index)  # type: ignore[arg-type]
    assert caught.value.message.startswith(words)
