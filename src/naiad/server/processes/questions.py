"""Which requests a member cannot answer alone, and whom they concern."""

import re
from collections.abc import Callable, Mapping

from naiad.core.tensor import Buffer
from naiad.frontend.category import category_of_call, category_of_path
from naiad.protocol import control_grpc
from naiad.server.processes.messages import AskStatistics, IsModelReady, IsReady, Question

_SERVICE = "/inference.GRPCInferenceService/"
_CHANGING = frozenset(("model-repository", "logging", "trace", "shared-memory"))
"""Categories whose calls change a process, but for those that ask a question."""
_UNCHANGING_CALLS = frozenset(
    _SERVICE + name for name in ("SystemSharedMemoryStatus", "CudaSharedMemoryStatus", "RepositoryIndex")
)
# The index is not asked for here: the engine itself does so, on the thread that reads the repository.

_MODEL_READY = re.compile(r"/v2/models/([^/]+)(?:/versions/([0-9]+))?/ready")


def question_of_path(path: str) -> Question | None:
    """Return what has to be asked of all members to answer an HTTP request; None when one can answer alone."""
    if path == "/v2/health/ready":
        return IsReady()
    model = _MODEL_READY.fullmatch(path)
    if model is not None:
        return IsModelReady(model[1], model[2] or "")
    return AskStatistics() if category_of_path(path) == "statistics" else None


def changes_by_path(path: str) -> bool:
    """Tell whether a POST to `path` changes a process, so that all have to carry it out."""
    return category_of_path(path) in _CHANGING and not path.endswith("/index")


def _ask_model(message: Buffer) -> Question:
    return IsModelReady(*control_grpc.decode_model_reference(message))


_QUESTIONS: Mapping[str, Callable[[Buffer], Question]] = {
    _SERVICE + "ServerReady": lambda _: IsReady(),
    "/grpc.health.v1.Health/Check": lambda _: IsReady(),
    _SERVICE + "ModelReady": _ask_model,
    _SERVICE + "ModelStatistics": lambda _: AskStatistics(),
}


def question_of_call(path: str, message: Buffer) -> Question | None:
    """Return what has to be asked of all members to answer a gRPC call. Raises InferError as decoding it does."""
    ask = _QUESTIONS.get(path)
    return None if ask is None else ask(message)


def changes_by_call(path: str) -> bool:
    """Tell whether a gRPC call changes a process, so that all have to carry it out."""
    return category_of_call(path) in _CHANGING and path not in _UNCHANGING_CALLS
