"""Requests of reflection, and their responses. Both packages of the protocol have equal messages on the wire."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from naiad.core.errors import excerpt
from naiad.core.tensor import Buffer
from naiad.protocol.grpc.control import parse_control
from naiad.protocol.reflection.service_files import V1, reflection_file
from naiad.protocol.reflection.symbol_index import SymbolIndex

_NOT_FOUND = 5
_INVALID_ARGUMENT = 3
"""Codes of gRPC: an error is a message of the stream, which goes on."""


def _message_class(name: str) -> Any:
    pool = DescriptorPool()  # of its own: a program may have another library's messages of this name
    pool.Add(reflection_file(V1))
    return GetMessageClass(pool.FindMessageTypeByName(f"{V1}.{name}"))


class ReflectionAnswers:
    """Answers the requests about one set of files."""

    def __init__(self, index: SymbolIndex) -> None:
        self._index = index
        self._request: type[Any] = _message_class("ServerReflectionRequest")
        self._response: type[Any] = _message_class("ServerReflectionResponse")
        self._fill: Mapping[str, Callable[[Any, Any], None]] = {
            "file_by_filename": self._file_by_name,
            "file_containing_symbol": self._file_declaring,
            "file_containing_extension": self._extension,
            "all_extension_numbers_of_type": self._extension_numbers,
            "list_services": self._services,
        }

    def answer(self, message: Buffer) -> bytes:
        """Return the ServerReflectionResponse to a ServerReflectionRequest. Raises InferError(INVALID_ARG)."""
        request = parse_control(self._request, message)
        response = self._response(valid_host=request.host)
        response.original_request.MergeFromString(request.SerializeToString())
        kind = request.WhichOneof("message_request")
        if kind is None:
            _fail(response, _INVALID_ARGUMENT, f"the request asks for nothing; set one of {', '.join(self._fill)}")
        else:
            self._fill[kind](response, getattr(request, kind))
        encoded: bytes = response.SerializeToString()
        return encoded

    def _file_by_name(self, response: Any, name: str) -> None:
        _take_file(response, self._index.file(name), f"there is no file '{excerpt(name)}'")

    def _file_declaring(self, response: Any, symbol: str) -> None:
        _take_file(response, self._index.file_declaring(symbol), f"there is no symbol '{excerpt(symbol)}'")

    def _extension(self, response: Any, extension: Any) -> None:
        message = excerpt(extension.containing_type)
        _fail(response, _NOT_FOUND, f"message '{message}' has no extension {extension.extension_number}")

    def _extension_numbers(self, response: Any, message: str) -> None:
        if message.removeprefix(".") in self._index.messages:
            response.all_extension_numbers_response.base_type_name = message
        else:
            _fail(response, _NOT_FOUND, f"there is no message '{excerpt(message)}'")

    def _services(self, response: Any, _asked: str) -> None:
        response.list_services_response.SetInParent()
        for name in self._index.services:
            response.list_services_response.service.add(name=name)


def _take_file(response: Any, files: Sequence[bytes] | None, otherwise: str) -> None:
    if files is None:
        _fail(response, _NOT_FOUND, otherwise)
    else:
        response.file_descriptor_response.file_descriptor_proto.extend(files)


def _fail(response: Any, code: int, message: str) -> None:
    response.error_response.error_code = code
    response.error_response.error_message = message
