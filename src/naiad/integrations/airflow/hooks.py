"""The hook: Airflow's connection to a server of naiad, or another one of KServe v2."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeVar

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from naiad.client import Client, ConnectionFailedError, ErrorCode, InferError
from naiad.integrations.airflow import CONNECTION_TYPE
from naiad.integrations.airflow.connection import EXTRA, ConnectionFieldError, ServerEndpoint, endpoint_of

DEFAULT_CONN_ID = "naiad_default"
_T = TypeVar("_T")


class NaiadHook(BaseHook):
    """Opens clients of the server of a connection.

        result = NaiadHook("naiad_default").run(lambda client: client.infer("iris", {"x": rows}))

    Host, port and schema (http, https, grpc, grpcs) are the address, the password is the API key, and the extra may
    have `timeout_s`, `connect_timeout_s`, `headers`, `ca_file`, `certificate_file` and `key_file`.
    """

    conn_name_attr: ClassVar[str] = "conn_id"
    default_conn_name: ClassVar[str] = DEFAULT_CONN_ID
    conn_type: ClassVar[str] = CONNECTION_TYPE
    hook_name: ClassVar[str] = "naiad"

    def __init__(self, conn_id: str = DEFAULT_CONN_ID) -> None:
        super().__init__()
        self.conn_id = conn_id
        self._endpoint: ServerEndpoint | None = None

    @property
    def endpoint(self) -> ServerEndpoint:
        """The server. Raises AirflowFailException for a connection with a wrong field."""
        if self._endpoint is None:
            self._endpoint = self._read(self.get_connection(self.conn_id))
        return self._endpoint

    async def aendpoint(self) -> ServerEndpoint:
        """Return the server, from an event loop. Raises AirflowFailException as `endpoint`."""
        if self._endpoint is None:
            self._endpoint = self._read(await self.aget_connection(self.conn_id))
        return self._endpoint

    def get_conn(self) -> Client:
        """Return a client for one event loop. Raises AirflowFailException for a connection with a wrong field."""
        return self._client(self.endpoint)

    async def aget_conn(self) -> Client:
        """Return a client for the running event loop. Raises AirflowFailException as `get_conn`."""
        return self._client(await self.aendpoint())

    def run(self, call: Callable[[Client], Awaitable[_T]]) -> _T:
        """Call the server, and return the result.

        Raises AirflowException that names connection, server and fix; AirflowFailException if a retry cannot help.
        """
        return asyncio.run(self.arun(call))

    async def arun(self, call: Callable[[Client], Awaitable[_T]]) -> _T:
        """Call the server from an event loop. Raises as `run`."""
        try:
            async with await self.aget_conn() as client:
                return await call(client)
        except InferError as error:
            raise self.failure(error) from error

    def failure(self, error: InferError) -> AirflowException:
        """Return the exception of a task for a call that failed."""
        url = self._endpoint.url if self._endpoint else ""
        text = f"connection '{self.conn_id}' ({url}): {error.message}"
        if isinstance(error, ConnectionFailedError):
            return AirflowException(f"{text}; start the server, or correct host, port and schema of the connection")
        if error.code is ErrorCode.PERMISSION_DENIED:
            return AirflowFailException(f"{text}; the API key is the password of the connection")
        return AirflowException(text)

    def test_connection(self) -> tuple[bool, str]:
        """Return whether the server responds, and its name and version or the reason. Airflow's button calls it."""
        try:
            metadata = self.run(lambda client: client.server_metadata())
        except AirflowException as error:
            return False, str(error)
        return True, f"{metadata.name} {metadata.version} at {self.endpoint.url}"

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return names and examples of the fields in Airflow's form."""
        return {
            "hidden_fields": ["login"],
            "relabeling": {"schema": "Protocol (http, https, grpc, grpcs)", "password": "API key"},
            "placeholders": {"host": "localhost", "port": "8000", "schema": "http", "extra": ", ".join(EXTRA)},
        }

    def _read(self, connection: Any) -> ServerEndpoint:
        try:
            return endpoint_of(connection)
        except ConnectionFieldError as error:
            raise AirflowFailException(str(error)) from error

    def _client(self, endpoint: ServerEndpoint) -> Client:
        try:
            return Client(
                endpoint.url,
                headers=endpoint.headers,
                tls=endpoint.tls(),
                timeout_s=endpoint.timeout_s,
                connect_timeout_s=endpoint.connect_timeout_s,
            )
        except (InferError, OSError) as error:
            reason = error.message if isinstance(error, InferError) else str(error)
            raise AirflowFailException(f"connection '{self.conn_id}': {reason}") from error
