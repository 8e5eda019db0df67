"""The REST routes of shared memory: status, register, unregister, for system and for CUDA regions."""

from collections.abc import Mapping

from naiad.core.errors import invalid_argument
from naiad.frontend.exchange import HttpExchange
from naiad.frontend.router import JSON_HEADERS, Route
from naiad.frontend.shared_memory import SharedMemoryControl
from naiad.protocol.shared_memory_json import (
    decode_cuda_registration,
    decode_system_registration,
    encode_cuda_status,
    encode_system_status,
)

_REGION = r"(?:/region/(?P<region>[^/]+))?"
_SYSTEM = "/v2/systemsharedmemory" + _REGION
_CUDA = "/v2/cudasharedmemory" + _REGION


class SharedMemoryRoutes:
    """The actions behind the routes."""

    def __init__(self, regions: SharedMemoryControl) -> None:
        self._regions = regions

    def routes(self) -> list[Route]:
        """Return the routes, which go into the router of the HTTP endpoint."""
        return [
            Route(_SYSTEM + "/status", {"GET": self._system_status}),
            Route(_SYSTEM + "/register", {"POST": self._register_system}),
            Route(_SYSTEM + "/unregister", {"POST": self._unregister_system}),
            Route(_CUDA + "/status", {"GET": self._cuda_status}),
            Route(_CUDA + "/register", {"POST": self._register_cuda}),
            Route(_CUDA + "/unregister", {"POST": self._unregister_cuda}),
        ]

    def _system_status(self, exchange: HttpExchange, arguments: Mapping[str, str]) -> None:
        exchange.respond(200, JSON_HEADERS, (encode_system_status(self._regions.system_status(arguments["region"])),))

    def _cuda_status(self, exchange: HttpExchange, arguments: Mapping[str, str]) -> None:
        exchange.respond(200, JSON_HEADERS, (encode_cuda_status(self._regions.cuda_status(arguments["region"])),))

    def _register_system(self, exchange: HttpExchange, arguments: Mapping[str, str]) -> None:
        name = _required(arguments, "system")
        self._regions.register_system(name, *decode_system_registration(exchange.body))
        exchange.respond(200, JSON_HEADERS, ())

    def _register_cuda(self, exchange: HttpExchange, arguments: Mapping[str, str]) -> None:
        name = _required(arguments, "cuda")
        self._regions.register_cuda(name, *decode_cuda_registration(exchange.body))
        exchange.respond(200, JSON_HEADERS, ())

    def _unregister_system(self, exchange: HttpExchange, arguments: Mapping[str, str]) -> None:
        self._regions.unregister_system(arguments["region"])
        exchange.respond(200, JSON_HEADERS, ())

    def _unregister_cuda(self, exchange: HttpExchange, arguments: Mapping[str, str]) -> None:
        self._regions.unregister_cuda(arguments["region"])
        exchange.respond(200, JSON_HEADERS, ())


def _required(arguments: Mapping[str, str], kind: str) -> str:
    name = arguments["region"]
    if not name:
        raise invalid_argument(f"'region name' is necessary to register {kind} shared memory region")
    return name
