"""What a control call is about, so that a process that starts later is told only what still holds."""

import re

from naiad.cluster.messages import ControlCall, ControlKey, Everywhere, HttpCall, ModelControl
from naiad.frontend.access import category_of_call, category_of_path
from naiad.protocol.grpc.walk import last_text

_LOAD = re.compile(r"/v2/repository(?:/[^/]+)?/models/([^/]+)/(?:load|unload)")
_REGION = re.compile(r"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(register|unregister)")
_REGION_CALL = re.compile(r".*/(System|Cuda)SharedMemory(Register|Unregister)")


def everywhere(call: ControlCall) -> Everywhere:
    """Return the request to carry a call out in all processes, with its key.

    The last load or unload of a model counts; unregistering a region undoes its registration, without a name those
    of all regions of its kind. Settings are told one after the other, but each only once. Raises InferError for a
    gRPC message that cannot be parsed.
    """
    if isinstance(call, ModelControl):
        return Everywhere(call, _model_key(call.name))
    return _of_http(call) if isinstance(call, HttpCall) else _of_grpc(call.path, call.message, call)


def _model_key(name: str) -> ControlKey:
    """Return the key of a load or unload; what concerns the models of a name begins alike and is done in order.

    `namespace::name` is one of those that have the name, which alone means all of them.
    """
    namespace, _, own = name.rpartition("::")
    return ("model", own, namespace) if namespace else ("model", name)


def _of_http(call: HttpCall) -> Everywhere:
    load = _LOAD.fullmatch(call.path)
    if load is not None:
        return Everywhere(call, _model_key(load[1]))
    region = _REGION.fullmatch(call.path)
    if region is not None:
        return _of_region(call, region[1], region[2] or "", region[3])
    return Everywhere(call, (category_of_path(call.path), call.path, call.body.hex()))


def _of_region(call: ControlCall, kind: str, name: str, verb: str) -> Everywhere:
    key = ("region", kind, name) if name else ("region", kind)
    return Everywhere(call, key, undoes=verb == "unregister")


def _of_grpc(path: str, message: bytes, call: ControlCall) -> Everywhere:
    # Not parsed as a whole: a load brings files.
    if path.endswith(("/RepositoryModelLoad", "/RepositoryModelUnload")):
        return Everywhere(call, _model_key(last_text(message, 2)))
    region = _REGION_CALL.fullmatch(path)
    if region is not None:
        # The name is in field 1 of all of them.
        return _of_region(call, region[1].lower(), last_text(message, 1), region[2].lower())
    return Everywhere(call, (category_of_call(path), path, message.hex()))
