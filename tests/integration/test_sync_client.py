"""The client with plain calls: dictionaries and arrays, conversions, errors, retries, threads, running loops."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from naiad.client import ConnectionFailedError, InferError, NotConnectedError, connect


@pytest.fixture(params=["http", "grpc"])
def url(request: pytest.FixtureRequest, server) -> str:
    return f"http://{server.http_url}" if request.param == "http" else f"grpc://{server.grpc_url}"


A = np.arange(32).reshape(2, 16)


def test_arrays_are_converted_to_the_datatypes_of_inputs(url: str) -> None:
    with connect(url) as client:
        found = client.infer("add_sub", {"INPUT0": A, "INPUT1": np.ones((2, 16))})
        assert found["OUTPUT0"].dtype == np.float32
        np.testing.assert_array_equal(found["OUTPUT0"], A + 1)
        single = client.infer("add_sub", {"INPUT0": A[1].tolist(), "INPUT1": [1] * 16}, outputs=["OUTPUT1"])
        assert list(single) == ["OUTPUT1"]
        np.testing.assert_array_equal(single["OUTPUT1"], A[1:] - 1)
        assert client.is_ready()
        assert client.is_ready("add_sub")
        assert [spec.name for spec in client.metadata("add_sub").inputs] == ["INPUT0", "INPUT1"]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ({"INPUT0": A}, "have no 'INPUT1'; they have 'INPUT0', the model takes 'INPUT0', 'INPUT1'"),
        ({"INPUT0": A, "INPUT1": A, "X": A}, "have 'X', which is no input"),
        (A, "send a dictionary with an array for each"),
        ({"INPUT0": A, "INPUT1": [["a"] * 16]}, "input 'INPUT1' takes FP32"),
        ([{"INPUT0": A[0], "INPUT1": A[0]}, {"INPUT0": A[0]}], "row 1 has other names than row 0"),
    ],
)
def test_wrong_rows_are_refused_with_both_lists(server, rows, text: str) -> None:
    with connect(server.http_url) as client, pytest.raises(InferError) as failure:
        client.infer("add_sub", rows)
    assert text in failure.value.message


def test_client_works_in_threads_and_running_loops(server) -> None:
    with connect(server.http_url) as client:
        results: list[object] = []

        def ask() -> None:
            results.append(client.infer("add_sub", {"INPUT0": A, "INPUT1": A})["OUTPUT0"].tolist())

        async def in_loop() -> None:
            ask()

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        asyncio.run(in_loop())
        for thread in threads:
            thread.join()
    assert results == [(2 * A).tolist()] * 5


def test_closed_client_refuses_calls(server) -> None:
    client = connect(server.http_url)
    client.close()
    client.close()
    with pytest.raises(ConnectionFailedError, match="closed"):
        client.is_ready()


def serve_later(listener: socket.socket, answers: list[bytes], sent: list[bytes]) -> Callable[[], None]:
    def run() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            sent.append(connection.recv(65536))
            connection.sendall(answer)
            connection.close()

    return run


def test_request_that_was_not_sent_is_sent_again() -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))  # without listen: connections are refused
    sent: list[bytes] = []
    response = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    url = f"127.0.0.1:{listener.getsockname()[1]}"
    with connect(url, retry_s=0) as client, pytest.raises(NotConnectedError):
        client.is_ready()
    results: list[bool] = []
    with connect(url, retry_s=60) as client:
        thread = threading.Thread(target=lambda: results.append(client.is_ready()))
        thread.start()
        time.sleep(0.1)  # so that the first attempt fails; the result is the same if it does not
        listener.listen()
        serve_later(listener, [response], sent)()
        thread.join()
    assert results == [True]
    assert len(sent) == 1
    listener.close()


def test_request_that_was_sent_is_not_sent_again() -> None:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    sent: list[bytes] = []
    server = threading.Thread(target=serve_later(listener, [b""], sent))
    server.start()
    url = f"127.0.0.1:{listener.getsockname()[1]}"
    with connect(url, retry_s=60) as client, pytest.raises(ConnectionFailedError) as failure:
        client.is_ready()
    assert not isinstance(failure.value, NotConnectedError)
    server.join()
    assert len(sent) == 1
    listener.close()
