"""JSON payloads of the shared-memory routes: registration requests to plain values, regions to rows."""

import binascii
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

import orjson

from naiad.core.errors import invalid_argument
from naiad.core.shared_memory import CudaRegionStatus, SystemRegionStatus
from naiad.core.tensor import Buffer
from naiad.protocol.json_tree import as_string, as_unsigned, member, parse_control_document

HANDLE_BYTES = 64
"""sizeof(cudaIpcMemHandle_t)."""


def decode_system_registration(body: Buffer) -> tuple[str, int, int]:
    """Return key, offset and byte size. Raises InferError with Triton's codes and texts."""
    tree = _tree(body)
    key = as_string("key", _field(tree, "key"))
    offset = as_unsigned("offset", tree["offset"]) if "offset" in tree else 0
    return key, offset, as_unsigned("byte_size", _field(tree, "byte_size"))


def decode_cuda_registration(body: Buffer) -> tuple[bytes, int, int]:
    """Return the handle, the device's number and the byte size. Raises InferError with Triton's codes and texts."""
    tree = _tree(body)
    raw_handle = _field(tree, "raw_handle")
    text = as_string("b64", member(raw_handle if isinstance(raw_handle, dict) else {}, "b64"))
    device_id = as_unsigned("device_id", member(tree, "device_id"))
    byte_size = as_unsigned("byte_size", member(tree, "byte_size"))
    try:
        handle = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        handle = b""
    if len(handle) != HANDLE_BYTES:
        raise invalid_argument(
            f"'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t, which has {HANDLE_BYTES} bytes"
        )
    return handle, device_id, byte_size


def _tree(body: Buffer) -> dict[str, Any]:
    """Return the members of a body; Triton: of anything else than an object there are none."""
    tree = parse_control_document(body)
    return tree if isinstance(tree, dict) else {}


def _field(tree: dict[str, Any], name: str) -> Any:
    if name not in tree:
        raise invalid_argument(f"Shared memory register request has no '{name}' field")
    return tree[name]


def encode_system_status(regions: Sequence[SystemRegionStatus]) -> bytes:
    """Return the body of `GET /v2/systemsharedmemory/status` and its relative."""
    return orjson.dumps(
        [{"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size} for r in regions]
    )


def encode_cuda_status(regions: Sequence[CudaRegionStatus]) -> bytes:
    """Return the body of `GET /v2/cudasharedmemory/status` and its relative."""
    return orjson.dumps([{"name": r.name, "device_id": r.device_id, "byte_size": r.byte_size} for r in regions])
