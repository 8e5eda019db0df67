"""What an Airflow connection of type `naiad` means: address, API key, timeouts and certificates of a server."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

SCHEMES = ("http", "https", "grpc", "grpcs")
_SECONDS = {"timeout_s": 60.0, "connect_timeout_s": 10.0}
_FILES = ("ca_file", "certificate_file", "key_file")
EXTRA = (*_SECONDS, "headers", *_FILES)
"""Fields of the connection's extra."""


class ConnectionFieldError(ValueError):
    """A field of a connection has a wrong value; the message names connection, field, value and fix."""


class AirflowConnection(Protocol):
    """The fields of Airflow's `Connection` that are read here."""

    conn_id: str
    host: str | None
    port: int | None
    schema: str | None
    password: str | None

    @property
    def extra_dejson(self) -> dict[str, Any]:
        """The extra as an object."""


@dataclass(frozen=True, slots=True)
class ServerEndpoint:
    """A server, as `naiad.client.Client` takes it."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = _SECONDS["timeout_s"]
    connect_timeout_s: float = _SECONDS["connect_timeout_s"]
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""

    def tls(self) -> ssl.SSLContext | None:
        """Return a context with the certificates, None without any. Raises OSError for a missing file."""
        if not (self.ca_file or self.certificate_file):
            return None
        context = ssl.create_default_context(cafile=self.ca_file or None)
        if self.certificate_file:
            context.load_cert_chain(self.certificate_file, self.key_file or None)
        return context


def endpoint_of(connection: AirflowConnection) -> ServerEndpoint:
    """Return the server of a connection. Raises ConnectionFieldError."""
    where = f"connection '{connection.conn_id}'"
    extra = {name: value for name, value in connection.extra_dejson.items() if not name.startswith("extra__")}
    unknown = sorted(extra.keys() - set(EXTRA))
    if unknown:
        raise ConnectionFieldError(f"{where}: extra has the field '{unknown[0]}'; expected {', '.join(EXTRA)}")
    headers = extra.get("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise ConnectionFieldError(
            f'{where}: headers in extra is {headers!r}; expected an object such as {{"x-key": "..."}}'
        )
    if connection.password:
        headers = {"Authorization": f"Bearer {connection.password}", **headers}
    files = {name: str(extra[name]) for name in _FILES if extra.get(name)}
    if "key_file" in files and "certificate_file" not in files:
        raise ConnectionFieldError(
            f"{where}: extra has key_file without certificate_file; add the certificate of the key"
        )
    seconds = {name: _seconds(where, name, extra.get(name, default)) for name, default in _SECONDS.items()}
    return ServerEndpoint(_url(where, connection), headers, **seconds, **files)  # type: ignore[arg-type] # two kinds of values


def _url(where: str, connection: AirflowConnection) -> str:
    host = connection.host or ""
    if "://" in host:
        return host
    if not host:
        raise ConnectionFieldError(
            f"{where} has no host; set it to the host name of the server, for example localhost"
        )
    scheme = connection.schema or SCHEMES[0]
    if scheme not in SCHEMES:
        raise ConnectionFieldError(f"{where}: schema is '{scheme}'; expected {', '.join(SCHEMES)}")
    name = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{scheme}://{name}:{connection.port}" if connection.port else f"{scheme}://{name}"


def _seconds(where: str, name: str, value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = 0.0
    if not 0 < found < float("inf"):
        raise ConnectionFieldError(f"{where}: {name} in extra is {value!r}; expected a number of seconds above 0")
    return found
