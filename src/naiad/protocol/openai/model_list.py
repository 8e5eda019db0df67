"""Bodies of `/v1/models`."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson


def encode_models(names: Iterable[str], created_s: int) -> bytes:
    """Return the list of models."""
    return orjson.dumps({"object": "list", "data": [_model(name, created_s) for name in names]})


def encode_model(name: str, created_s: int) -> bytes:
    """Return one model."""
    return orjson.dumps(_model(name, created_s))


def _model(name: str, created_s: int) -> Mapping[str, Any]:
    return {"id": name, "object": "model", "created": created_s, "owned_by": "naiad"}
