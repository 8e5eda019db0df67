"""The transports of a server, each with the stock client of its protocol: a test is written once for all."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from support.certificates import Certificates
from support.server_process import ServerProcess

PLAIN = ("http1", "http2", "grpc", "one-port")
"""Transports of a server with its default flags; `one-port` is gRPC on the HTTP port."""
ALL = (*PLAIN, "tls", "unix")
"""`tls` is HTTP/1.1, `unix` is gRPC over a Unix socket; both need a server with their flags."""

_HTTP_STATUS = {
    "INVALID_ARGUMENT": "400",
    "ALREADY_EXISTS": "400",
    "NOT_FOUND": "404",
    "INTERNAL": "500",
    "UNIMPLEMENTED": "501",
    "UNAVAILABLE": "503",
}


class _Http2Response:
    """An HTTP/2 response with the methods that tritonclient calls."""

    def __init__(self, response: httpx.Response) -> None:
        self.status_code = response.status_code
        headers = response.headers.copy()
        headers.pop("content-encoding", None)  # httpx has decompressed the body
        self.get = headers.get
        self._body, self._at = response.content, 0

    def read(self, length: int | None = None) -> bytes:
        start, end = self._at, len(self._body) if length is None else self._at + length
        self._at = end
        return self._body[start:end]


class _Http2Stub:
    """Takes the place of the HTTP/1.1 connections below tritonclient."""

    def __init__(self, url: str) -> None:
        transport = httpx.HTTPTransport(http1=False, http2=True, verify=False)
        self._client = httpx.Client(base_url=f"http://{url}", transport=transport, timeout=60)
        self.close = self._client.close

    def get(self, request_uri: str, headers: Mapping[str, str] | None = None) -> _Http2Response:
        return _Http2Response(self._client.get(request_uri, headers=headers))

    def post(self, request_uri: str, body: Any, headers: Mapping[str, str] | None = None) -> _Http2Response:
        content = body.encode() if isinstance(body, str) else bytes(body)
        texts = {name: str(value) for name, value in (headers or {}).items()}
        return _Http2Response(self._client.post(request_uri, content=content, headers=texts))


class Inferred:
    """A result of either protocol."""

    def __init__(self, result: Any) -> None:
        self.result = result
        response = result.get_response()
        self._response = as_object(response)
        self.id: str = response.get("id", "") if isinstance(response, dict) else response.id
        self.model = (self._response.model_name, self._response.model_version)
        self.names = [output.name for output in self._response.outputs]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.result.as_numpy(name)

    def spec(self, name: str) -> tuple[str, list[int]]:
        """Return datatype and shape of an output."""
        (output,) = [each for each in self._response.outputs if each.name == name]
        return output.datatype, list(output.shape)


class Transport:
    """A client of one transport."""

    def __init__(self, name: str, module: ModuleType, new_client: Callable[[], Any]) -> None:
        self.name = name
        self.module = module
        self.is_http = module is httpclient
        self.new_client = new_client
        """Opens another client; a client of HTTP serves one thread."""
        self.client = new_client()

    def tensor(self, name: str, array: np.ndarray, datatype: str = "") -> Any:
        """Return an input."""
        made = self.module.InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
        made.set_data_from_numpy(array)
        return made

    def raw_tensor(self, name: str, datatype: str, shape: Sequence[int], data: bytes) -> Any:
        """Return an input whose data need not fit its shape."""
        made = self.module.InferInput(name, list(shape), datatype)
        if self.is_http:
            made._raw_data = data
            made._parameters["binary_data_size"] = len(data)
        else:
            made._raw_content = data
        return made

    def infer(
        self,
        model: str,
        inputs: Mapping[str, np.ndarray] | Sequence[Any],
        *,
        version: str = "",
        outputs: Sequence[Any] | None = None,
        compression: str | None = None,
        client: Any = None,
        **more: Any,
    ) -> Inferred:
        """Execute a model with arrays by name, or with inputs; outputs may be names."""
        if isinstance(inputs, Mapping):
            inputs = [self.tensor(name, array) for name, array in inputs.items()]
        if outputs is not None:
            outputs = [self.module.InferRequestedOutput(each) if isinstance(each, str) else each for each in outputs]
        more["request_compression_algorithm" if self.is_http else "compression_algorithm"] = compression
        result = (client or self.client).infer(model, list(inputs), model_version=version, outputs=outputs, **more)
        return Inferred(result)

    @contextmanager
    def fails(self, code: str, text: str = "") -> Iterator[pytest.ExceptionInfo[InferenceServerException]]:
        """Expect an error with a gRPC status code, or the HTTP status for it, and a text in its message."""
        with pytest.raises(InferenceServerException) as caught:
            yield caught
        expected = _HTTP_STATUS[code] if self.is_http else f"StatusCode.{code}"
        assert caught.value.status() == expected, caught.value
        assert text in caught.value.message()

    def statistics(self, model: str = "", version: str = "") -> Any:
        """Return the rows of statistics with a row's fields as attributes."""
        return as_object(self.client.get_inference_statistics(model, version)).model_stats

    def metadata(self, model: str, version: str = "") -> Any:
        """Return a model's metadata with its fields as attributes."""
        return as_object(self.client.get_model_metadata(model, version))

    def config(self, model: str, version: str = "") -> Any:
        """Return a model's configuration with its fields as attributes."""
        config = as_object(self.client.get_model_config(model, version))
        return config if self.is_http else config.config

    def extensions(self) -> set[str]:
        """Return the extensions of the server."""
        return set(as_object(self.client.get_server_metadata()).extensions)

    def index(self) -> dict[str, tuple[str, str, str]]:
        """Return version, state and reason of each model."""
        found = self.client.get_model_repository_index()
        rows = found if self.is_http else [{f.name: v for f, v in row.ListFields()} for row in found.models]
        return {row["name"]: tuple(row.get(field, "") for field in ("version", "state", "reason")) for row in rows}

    def close(self) -> None:
        self.client.close()


def as_object(answer: Any) -> Any:
    """Return the JSON object of HTTP with its members as attributes; a message of gRPC has them."""
    return (
        json.loads(json.dumps(answer), object_hook=lambda members: SimpleNamespace(**members))
        if isinstance(answer, dict)
        else answer
    )


def new_transport(name: str, server: ServerProcess, certificates: Certificates | None = None) -> Transport:
    """Open a client of a transport; `certificates` belong to a server with TLS."""
    if name in ("http1", "http2", "tls"):
        more = {}
        if name == "tls":
            assert certificates is not None
            more = {"ssl": True, "ssl_context_factory": certificates.client_context}

        def new_client() -> Any:
            client = httpclient.InferenceServerClient(server.http_url, **more)
            if name == "http2":
                client._client_stub.close()
                client._client_stub = _Http2Stub(server.http_url)
            return client

        return Transport(name, httpclient, new_client)
    url = server.http_url if name == "one-port" else server.grpc_url
    return Transport(name, grpcclient, lambda: grpcclient.InferenceServerClient(url))
