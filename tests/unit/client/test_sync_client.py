"""The client with plain calls: what other threads see of its end."""

import contextlib
import socket
import threading

import pytest

from naiad.client import ClientClosedError, ConnectionFailedError, connect


@pytest.mark.parametrize("count", [1, 2])
def test_calls_of_other_threads_end_with_the_client(count: int) -> None:
    with contextlib.ExitStack() as listeners:
        opened = [listeners.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        client = connect([f"127.0.0.1:{each.getsockname()[1]}" for each in opened])
        errors: list[BaseException] = []

        def ask() -> None:
            try:
                client.metadata("m")
            except BaseException as error:
                errors.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        opened[count - 1].accept()[0].recv(1)
        client.close()
        asking.join(30)
        assert len(errors) == 1
        assert isinstance(errors[0], ConnectionFailedError)
        assert errors[0].has_begun
        with pytest.raises(ClientClosedError):
            client.metadata("m")
