"""The declaration of an operation: its name, its access category, and how a client asks for it.

The router, the gRPC service, access rules, the OpenAPI document, the endpoints of clouds and the processes of a
cluster read it. A control operation is declared completely: each form decodes a request and encodes a result, and
`call` asks the engine. Operations without `call`, such as inferences, have their actions in the frontend.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from naiad.core.slices import Slices
from naiad.core.tensor import Buffer
from naiad.engine.engine import Engine
from naiad.operations.requests import CommandOrder, ModelVersion
from naiad.options.network.access_options import Category

_SERVICE = "/inference.GRPCInferenceService/"
_Q = TypeVar("_Q")
_R = TypeVar("_R")

OperationKind = Literal["query", "command"]
"""A command changes the server; a query, such as an inference, does not."""
Place = Literal["loop", "slices", "index thread", "control thread"]
"""Where a call runs: on the event loop, on it in slices, on a thread that reads the repository, or on a thread for
work of minutes. With slices, the call and the encoders return generators."""
MayBringFiles = Callable[[], bool]
"""Returns whether clients with access to the load commands of a protocol may send model files; the result may change.
"""


class RestReply(NamedTuple):
    """The response to a request over REST."""

    body: bytes
    status: int = 200
    content_type: bytes = b"application/json"


_TOKEN = re.compile(r"\{(\w+)\}|([\[\]])|([^\[\]{}]+)")
_PARAMETERS = {"version": r"0*(?P<version>[0-9]+|[A-Za-z][A-Za-z0-9_.-]{0,63})"}
"""Triton: a version is a number, so 01 is 1. naiad: or a name, such as "stable". Others take any segment."""
_BRACKETS = {"[": "(?:", "]": ")?"}
_OPTIONAL = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class PathTemplate:
    """A path with parameters in braces and at most one optional part in brackets, as in docs/endpoints.md.

    For example `/v2/models/{model}[/versions/{version}]/infer`.
    """

    text: str
    pattern: str = field(init=False)
    """A regular expression with a named group for each parameter."""

    def __post_init__(self) -> None:
        """Raise ValueError for a text that is not a template."""
        tokens = list(_TOKEN.finditer(self.text))
        if "".join(token[0] for token in tokens) != self.text or not self.text.startswith("/"):
            raise ValueError(f"'{self.text}' is not the template of a path")
        object.__setattr__(self, "pattern", "".join(map(_part, tokens)))

    @property
    def variants(self) -> tuple[str, ...]:
        """The template without its optional part, and with it if there is one."""
        return tuple(dict.fromkeys([_OPTIONAL.sub("", self.text), _OPTIONAL.sub(r"\1", self.text)]))

    def fill(self, **values: str) -> str:
        """Return the path without its optional part, with values for its parameters."""
        return self.variants[0].format(**values)


def _part(token: re.Match[str]) -> str:
    name, bracket, literal = token.groups()
    if name is not None:
        return _PARAMETERS.get(name, rf"(?P<{name}>[^/]++)")
    return _BRACKETS[bracket] if bracket is not None else re.escape(literal)


class RestForm(Generic[_Q, _R]):
    """One way to ask for an operation over REST."""

    __slots__ = ("decode", "encode", "group", "method", "path", "summary")

    def __init__(
        self,
        method: str,
        path: str,
        decode: Callable[[Mapping[str, str], Buffer], _Q] | None = None,
        encode: "Callable[[_R], RestReply | Slices[RestReply]] | None" = None,
        *,
        group: str = "",
        summary: str = "",
    ) -> None:
        """`path` is a template, and `decode` takes its parameters and the body.

        Without an own group or summary, the operation's apply.
        """
        self.method = method
        self.path = PathTemplate(path)
        self.decode = decode
        self.encode = encode
        self.group = group
        self.summary = summary


class GrpcForm(Generic[_Q, _R]):
    """The gRPC method of an operation."""

    __slots__ = ("decode", "encode", "path", "target")

    def __init__(
        self,
        method: str,
        decode: Callable[[Buffer], _Q] | None = None,
        encode: Callable[[_R], bytes | Slices[bytes]] | None = None,
        *,
        target: Callable[[Buffer], str | None] | None = None,
    ) -> None:
        """`method` belongs to `inference.GRPCInferenceService` unless it begins with a slash and its service.

        `target` returns the name of what a command changes, for the audit; None for a message that changes nothing.
        """
        self.path = method if method.startswith("/") else _SERVICE + method
        self.decode = decode
        self.encode = encode
        self.target = target


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation(Generic[_Q, _R]):
    """Something that a client can ask of the server: a request of type `_Q` with a result of type `_R`."""

    name: str
    category: Category
    """For access rules. It has no default: an operation that forgot it would be open on a restricted server."""
    kind: OperationKind
    group: str
    """The heading of its endpoints on the API page."""
    summary: str
    rest: Sequence[RestForm[_Q, _R]] = ()
    grpc: GrpcForm[_Q, _R] | None = None
    call: Callable[[Engine, _Q], _R | Slices[_R]] | None = None
    place: Place = "loop"
    order: Callable[[_Q], CommandOrder | None] | None = None
    """Returns the order of a command, which all processes of a server then carry out; None if it changes nothing."""
    permit: Callable[[_Q, MayBringFiles], _Q] | None = None
    """Returns the request with the rights of its client. Raises InferError."""

    def __post_init__(self) -> None:
        """Raise ValueError for a command that processes could not carry out."""
        if self.kind == "command" and self.call is not None and self.order is None:
            raise ValueError(f"the command {self.name} has no order")

    def path(self, **values: str) -> str:
        """Return the path of its first REST form with values for the parameters."""
        return self.rest[0].path.fill(**values)


AnyOperation = Operation[Any, Any]


def grpc_path(operation: AnyOperation) -> str:
    """Return the path of the gRPC method of an operation that has one."""
    assert operation.grpc is not None, operation.name
    return operation.grpc.path


def by_grpc_path(operations: Sequence[AnyOperation]) -> Mapping[str, AnyOperation]:
    """Return the operations that have a gRPC method, by its path. Raises ValueError if two have the same."""
    found: dict[str, AnyOperation] = {}
    for operation in operations:
        if operation.grpc is not None:
            other = found.setdefault(operation.grpc.path, operation)
            if other is not operation:
                raise ValueError(f"{other.name} and {operation.name} are both {operation.grpc.path}")
    return found


def decode_version(parameters: Mapping[str, str], body: Buffer) -> ModelVersion:
    """Return the model and version of a path; both are empty for a path without them."""
    return ModelVersion(parameters.get("model", ""), parameters.get("version", ""))


def decode_nothing(parameters: Mapping[str, str], body: Buffer) -> None:
    """Return None: the path says all."""


def json_reply(encode: Callable[[_R], bytes]) -> Callable[[_R], RestReply]:
    """Return an encoder of JSON documents for REST."""
    return lambda result: RestReply(encode(result))


def empty_reply(result: None) -> RestReply:
    """Return the response of a command that has nothing to say."""
    return RestReply(b"")


def empty_message(result: None) -> bytes:
    """Return the message of a command that has nothing to say."""
    return b""
