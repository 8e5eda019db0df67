"""Keys of control calls: of several calls with one key, a later started process replays only the last."""

import re

from naiad.cluster.messages import BroadcastRequest, ControlCall, ControlKey, HttpCall, ModelControl
from naiad.frontend.access import category_of_call, category_of_path
from naiad.protocol.grpc.walk import last_text

_LOAD = re.compile(r"/v2/repository(?:/[^/]+)?/models/([^/]+)/(?:load|unload)")
_REGION = re.compile(r"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(register|unregister)")
_REGION_CALL = re.compile(r".*/(System|Cuda)SharedMemory(Register|Unregister)")


def broadcast(call: ControlCall) -> BroadcastRequest:
    """Return the request to broadcast a call, with its key.

    The last load or unload of a model counts; unregistering a region undoes its registration, and without a name the
    registrations of all regions of its kind. Changes of settings are replayed in order, equal ones once. Raises
    InferError for a malformed gRPC message.
    """
    if isinstance(call, ModelControl):
        return BroadcastRequest(call, _model_key(call.name))
    return _of_http(call) if isinstance(call, HttpCall) else _of_grpc(call.path, call.message, call)


def _model_key(name: str) -> ControlKey:
    """Return the key of a load or unload; calls about models of one name share a prefix and run in order.

    `namespace::name` is one of the models with the name; the name alone means all of them.
    """
    namespace, _, own = name.rpartition("::")
    return ("model", own, namespace) if namespace else ("model", name)


def _of_http(call: HttpCall) -> BroadcastRequest:
    load = _LOAD.fullmatch(call.path)
    if load is not None:
        return BroadcastRequest(call, _model_key(load[1]))
    region = _REGION.fullmatch(call.path)
    if region is not None:
        return _of_region(call, region[1], region[2] or "", region[3])
    return BroadcastRequest(call, (category_of_path(call.path), call.path, call.body.hex()))


def _of_region(call: ControlCall, kind: str, name: str, verb: str) -> BroadcastRequest:
    key = ("region", kind, name) if name else ("region", kind)
    return BroadcastRequest(call, key, undoes=verb == "unregister")


def _of_grpc(path: str, message: bytes, call: ControlCall) -> BroadcastRequest:
    # The message is not parsed as a whole: a load contains files.
    if path.endswith(("/RepositoryModelLoad", "/RepositoryModelUnload")):
        return BroadcastRequest(call, _model_key(last_text(message, 2)))
    region = _REGION_CALL.fullmatch(path)
    if region is not None:
        # The name is in field 1 of all of them.
        return _of_region(call, region[1].lower(), last_text(message, 1), region[2].lower())
    return BroadcastRequest(call, (category_of_call(path), path, message.hex()))
