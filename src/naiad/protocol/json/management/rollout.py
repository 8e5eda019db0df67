"""JSON payloads of `/v2/models/{model}/rollout`."""

from collections.abc import Mapping
from typing import Any

import orjson

from naiad.config.rollout.rollout_status import RolloutStatus
from naiad.core.errors import invalid_argument
from naiad.core.tensor import Buffer
from naiad.protocol.json.tree import parse_control_document

_EXAMPLE = '{"canary": 2, "weight": 10}, {"action": "rollback"} or {"to": 2}'


def decode_change(body: Buffer) -> Mapping[str, Any]:
    """Return the fields of a change; `config.rollout.state.changed` checks them. Raises InferError(INVALID_ARG)."""
    tree = parse_control_document(body) if len(body) else {}
    if not isinstance(tree, dict) or not tree:
        raise invalid_argument(f"the body of a change of a rollout has no fields; send an object, such as {_EXAMPLE}")
    return tree


def encode_status(status: RolloutStatus) -> bytes:
    """Return the body of all responses."""
    return orjson.dumps(status.as_tree())
