"""The declaration of an operation: its name, its access category, and how a client asks for it.

The router, the gRPC service, access rules, the OpenAPI document, the endpoints of clouds and the processes of a
cluster read it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from naiad.operations.path import PathTemplate
from naiad.options.network.access import Category

_SERVICE = "/inference.GRPCInferenceService/"

OperationKind = Literal["query", "command"]
"""A command changes the server; a query, such as an inference, does not."""


class RestForm:
    """One way to ask for an operation over REST."""

    __slots__ = ("group", "method", "path", "summary")

    def __init__(self, method: str, path: str, *, group: str = "", summary: str = "") -> None:
        """`path` is a template; without an own group or summary, the operation's apply."""
        self.method = method
        self.path = PathTemplate(path)
        self.group = group
        self.summary = summary


class GrpcForm:
    """The gRPC method of an operation."""

    __slots__ = ("path",)

    def __init__(self, method: str) -> None:
        """`method` belongs to `inference.GRPCInferenceService` unless it begins with a slash and its service."""
        self.path = method if method.startswith("/") else _SERVICE + method


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation:
    """Something that a client can ask of the server."""

    name: str
    category: Category
    """For access rules. It has no default: an operation that forgot it would be open on a restricted server."""
    kind: OperationKind
    group: str
    """The heading of its endpoints on the API page."""
    summary: str
    rest: Sequence[RestForm] = ()
    grpc: GrpcForm | None = None

    def path(self, **values: str) -> str:
        """Return the path of its first REST form with values for the parameters."""
        return self.rest[0].path.fill(**values)


def by_grpc_path(operations: Sequence[Operation]) -> Mapping[str, Operation]:
    """Return the operations that have a gRPC method, by its path. Raises ValueError if two have the same."""
    found: dict[str, Operation] = {}
    for operation in operations:
        if operation.grpc is not None:
            other = found.setdefault(operation.grpc.path, operation)
            if other is not operation:
                raise ValueError(f"{other.name} and {operation.name} are both {operation.grpc.path}")
    return found
