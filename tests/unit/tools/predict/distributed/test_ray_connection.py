"""Addresses of Ray, and errors where none answers."""

import socket
import sys
import threading
from types import SimpleNamespace

import pytest

from naiad.core.errors import ErrorCode, InferError
from naiad.tools.predict.distributed import ray_connection
from naiad.tools.predict.distributed.ray_connection import check_address, connect, connection_error


def with_ray(monkeypatch, **members) -> SimpleNamespace:
    ray = SimpleNamespace(**{"is_initialized": lambda: False, **members})
    monkeypatch.setitem(sys.modules, "ray", ray)
    return ray


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("local", None),
        ("auto", None),
        ("ray://10.0.0.1:10001", ("10.0.0.1", 10001)),
        ("head:6379", ("head", 6379)),
        ("ray://[::1]:10001", ("::1", 10001)),
    ],
)
def test_addresses(address: str, place) -> None:
    assert check_address(address) == place


@pytest.mark.parametrize("address", ["", "head", "ray://head", "http://head:80", "ray://head:x", "head:1/y"])
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(InferError, match=r"expected local, auto, HOST:PORT or ray://HOST:PORT"):
        check_address(address)


def test_without_ray_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InferError, match=r"pip install 'naiad\[ray\]'") as caught:
        connect("local")
    assert caught.value.code is ErrorCode.UNSUPPORTED


def test_an_address_that_does_not_answer(monkeypatch) -> None:
    with_ray(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(InferError, match=r"no Ray answers at 'ray://127\.0\.0\.1") as caught:
        connect(f"ray://127.0.0.1:{port}")
    assert caught.value.code is ErrorCode.UNAVAILABLE


def test_an_address_that_accepts_and_is_silent(monkeypatch) -> None:
    monkeypatch.setattr(ray_connection, "START_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def init(**settings) -> None:
            server.accept()
            server.accept()  # the check has connected once, too; this one waits for its end

        with_ray(monkeypatch, init=init, shutdown=lambda: None)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InferError, match="has not accepted a connection within"):
            connect(address)
        socket.create_connection(server.getsockname()).close()


def test_a_program_that_is_connected_stays_so(monkeypatch) -> None:
    ray = with_ray(monkeypatch, is_initialized=lambda: True)
    connection = connect("auto")
    connection.close()
    assert connection.ray is ray


def test_one_thread_has_the_connection(monkeypatch) -> None:
    calls: list[tuple[str, int]] = []
    with_ray(
        monkeypatch,
        init=lambda **settings: calls.append((settings["address"], threading.get_ident())),
        shutdown=lambda: calls.append(("end", threading.get_ident())),
    )
    connection = connect("local")
    assert [call for call, _ in calls] == ["local"]
    connection.close()
    assert [call for call, _ in calls] == ["local", "end"]
    assert len({thread for _, thread in calls}) == 1


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (
            RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.12.1"),
            ErrorCode.INVALID_ARG,
            "use the Python and the Ray of the cluster",
        ),
        (ConnectionError("Could not find any running Ray instance."), ErrorCode.UNAVAILABLE, "or start one for this"),
        (ImportError("grpcio is missing"), ErrorCode.UNSUPPORTED, "naiad[ray]"),
        (ValueError(""), ErrorCode.UNAVAILABLE, "ValueError"),
    ],
)
def test_errors_of_ray_have_a_fix(error: Exception, code: ErrorCode, text: str) -> None:
    found = connection_error("auto", error)
    assert found.code is code
    assert text in found.message
    assert "\n" not in found.message


def test_a_cluster_that_refuses_may_want_a_token() -> None:
    found = connection_error("head:6379", ConnectionError("Failed to connect to Ray cluster at head:6379"))
    assert found.code is ErrorCode.UNAVAILABLE
    assert "RAY_AUTH_TOKEN" in found.message
