"""One module a target, each with a `TARGET`."""

from fuzz.target import Target
from fuzz.targets import grpc_framing, hpack_cache, http1, http2, infer_binary, infer_grpc, infer_json, pbtxt

TARGETS: dict[str, Target] = {
    module.TARGET.name: module.TARGET
    for module in (http1, http2, hpack_cache, grpc_framing, infer_json, infer_binary, infer_grpc, pbtxt)
}
"""Targets by name."""
