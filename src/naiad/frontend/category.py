"""Which category of the protocol a path belongs to: what restrictions and API keys speak of."""

import re

_SERVICE = "/inference.GRPCInferenceService/"
_HEALTH_SERVICE = "/grpc.health.v1.Health/"
_BY_CALL = {
    "ServerLive": "health",
    "ServerReady": "health",
    "ModelReady": "health",
    "ServerMetadata": "metadata",
    "ModelMetadata": "metadata",
    "ModelInfer": "inference",
    "ModelStreamInfer": "inference",
    "ModelConfig": "model-config",
    "ModelStatistics": "statistics",
    "RepositoryIndex": "model-repository",
    "RepositoryModelLoad": "model-repository",
    "RepositoryModelUnload": "model-repository",
    "SystemSharedMemoryStatus": "shared-memory",
    "SystemSharedMemoryRegister": "shared-memory",
    "SystemSharedMemoryUnregister": "shared-memory",
    "CudaSharedMemoryStatus": "shared-memory",
    "CudaSharedMemoryRegister": "shared-memory",
    "CudaSharedMemoryUnregister": "shared-memory",
    "TraceSetting": "trace",
    "LogSettings": "logging",
}
_MODEL = r"/v2/models/[^/]+(?:/versions/[0-9]+)?"
# The first that matches counts. Triton: "stats" is never a model's name.
_BY_PATH = tuple(
    # A decoded path may hold any character, and must not get past a restriction by one that "." does not match.
    (re.compile(pattern, re.DOTALL), category)
    for pattern, category in (
        (r"/v2/health/.*", "health"),
        (_MODEL + "/ready", "health"),
        (_MODEL + "/(?:infer|generate|generate_stream)", "inference"),
        (_MODEL + "/config", "model-config"),
        (r"/v2/models/stats|" + _MODEL + "/(?:stats|explain)", "statistics"),
        (r"/v2/trace/setting|" + _MODEL + "/trace/setting", "trace"),
        (r"/v2/logging", "logging"),
        (r"/v2/(?:system|cuda)sharedmemory/.*", "shared-memory"),
        (r"/v2/repository/.*", "model-repository"),
        (r"/v2|" + _MODEL, "metadata"),
    )
)

OTHER = "other"
"""A path of no category: no restriction names it, and only a key for everything opens it."""


def category_of_path(path: str) -> str:
    """Return the category of an HTTP path, percent-decoded and without its query."""
    for pattern, category in _BY_PATH:
        if pattern.fullmatch(path):
            return category
    return OTHER


def category_of_call(path: str) -> str:
    """Return the category of a gRPC method's path."""
    if path.startswith(_HEALTH_SERVICE):
        return "health"
    return _BY_CALL.get(path.removeprefix(_SERVICE), OTHER) if path.startswith(_SERVICE) else OTHER
