"""The connection to a Ray: a new one on this machine, or one that runs.

Each wait is bounded, and each error says what to do. Ray itself waits for minutes for an address that does not
answer, and may end the process; so a plain connection is tried before.
"""

import logging
import os
import socket
import threading
from concurrent.futures import Future
from typing import Any
from urllib.parse import urlsplit

from naiad.core.errors import InferError, excerpt, invalid_argument, unavailable, unsupported

LOCAL, AUTO = "local", "auto"
_CLIENT = "ray://"
_ANSWER_S = 10.0
"""For a TCP connection."""
_END_S = 30.0
START_S = 120.0
"""For Ray to accept this process."""
_START_HERE_S = 300.0
"""For Ray to start on this machine, which may be busy; idle ones need 5 s."""


class RayConnection:
    """Ray, as this process is connected to it."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray

    def close(self) -> None:
        """Leave the connection to the program, which made it."""


class OwnRayConnection(RayConnection):
    """A connection that ends with the job, and with it a Ray that was started here.

    One thread has it from its start to its end: the processes of a Ray that was started get a signal to end when that
    thread ends (PR_SET_PDEATHSIG), which also makes them end when this process is killed.
    """

    def __init__(self, ray: Any, address: str) -> None:
        super().__init__(ray)
        self._address = address
        self._started: Future[None] = Future()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray connection", daemon=True)

    def start(self) -> None:
        """Connect. Raises InferError, after some minutes at the latest."""
        self._thread.start()
        limit_s = _START_HERE_S if self._address == LOCAL else START_S
        try:
            self._started.result(limit_s)
        except TimeoutError:
            self._closing.set()
            text = f"ray '{self._address}' has not accepted a connection within {limit_s:g} s"
            raise unavailable(text) from None
        except Exception as error:
            raise connection_error(self._address, error) from None

    def close(self) -> None:
        """Disconnect, and wait until a Ray that was started here has ended."""
        self._closing.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self._address == LOCAL:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported outside of the machine
            settings["include_dashboard"] = False
        try:
            self.ray.init(address=self._address, **settings)
        except BaseException as error:
            self._started.set_exception(error)
            return
        self._started.set_result(None)
        self._closing.wait()
        self.ray.shutdown()


def connect(address: str) -> RayConnection:
    """Connect to the Ray at an address, or start one for `local`; a program that is connected stays so.

    Raises InferError, within a few minutes.
    """
    try:
        import ray
    except ModuleNotFoundError:
        raise unsupported("a job on Ray needs the package ray; pip install 'naiad[ray]'") from None
    if ray.is_initialized():
        return RayConnection(ray)
    _check_answers(address)
    connection = OwnRayConnection(ray, address)
    connection.start()
    return connection


def check_address(address: str) -> tuple[str, int] | None:
    """Return host and port of an address; None for `local` and `auto`. Raises InferError for another form."""
    if address in (LOCAL, AUTO):
        return None
    try:
        parts = urlsplit(f"//{address.removeprefix(_CLIENT)}")
        if parts.hostname and parts.port and not parts.path:
            return parts.hostname, parts.port
    except ValueError:
        pass
    raise invalid_argument(
        f"ray is '{excerpt(address)}'; expected local, auto, HOST:PORT or ray://HOST:PORT, for example "
        "ray://127.0.0.1:10001"
    )


def connection_error(address: str, error: Exception) -> InferError:
    """Return the error for what Ray raises when it starts or accepts no connection."""
    text = " ".join(line.strip() for line in str(error).splitlines() if line.strip()) or type(error).__name__
    if "mismatch" in text or "Python minor versions differ" in text:
        return invalid_argument(
            f"ray '{address}' and this process have other versions: {text}; use the Python and the Ray of the cluster"
        )
    if isinstance(error, ModuleNotFoundError | ImportError):
        return unsupported(f"ray '{address}': {text}; pip install 'naiad[ray]'")
    if address == AUTO and isinstance(error, ConnectionError):
        text = f"{text}; name its address, or start one for this job with local"
    elif isinstance(error, ConnectionError):
        text = f"{text}; if it asks for a token, set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH as on its machines"
    return unavailable(f"ray '{address}' cannot be used: {text}")


def _check_answers(address: str) -> None:
    place = check_address(address)
    if place is None:
        return
    try:
        socket.create_connection(place, _ANSWER_S).close()
    except OSError as error:
        reason = error.strerror or str(error) or "no answer"
        raise unavailable(f"no Ray answers at '{address}': {reason}; is it started, and the port right?") from None
