"""What is observed beside the requests of a measurement: the server's metrics, and idle cores of this machine."""

import threading
import time
import urllib.request

from naiad.core.errors import invalid_argument
from naiad.tools.process.usage import read_machine

_TIMEOUT_S = 2.0
_MAX_BYTES = 16 * 1024 * 1024


class MetricsScrape:
    """Reads the server's metrics in a thread, so that the generator is not disturbed.

    Keeps the moment and text of each scrape; one that fails is left out.
    """

    def __init__(self, url: str, interval_s: float) -> None:
        """Raises InferError(INVALID_ARG) for an address that is not of HTTP."""
        if not url.startswith(("http://", "https://")):
            raise invalid_argument(f"the metrics URL is '{url}'; expected http://HOST:PORT/metrics")
        self._url = url
        self._interval_s = interval_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        # Without the proxies of the environment, as the requests themselves.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self.scrapes: list[tuple[int, str]] = []

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more; a scrape in progress is not waited for."""
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                with self._opener.open(self._url, timeout=_TIMEOUT_S) as response:
                    text = response.read(_MAX_BYTES).decode("utf-8", "replace")
            except (OSError, ValueError):
                text = ""
            if text and not self._is_over.is_set():
                self.scrapes.append((time.monotonic_ns(), text))
            self._is_over.wait(self._interval_s)


class IdleCores:
    """How many cores are idle, so that another generator process has one.

    Measures from its creation on; Linux only, elsewhere none are idle.
    """

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._idle_s = read_machine().idle_s

    def mean(self) -> float:
        """Return the mean number of idle cores."""
        elapsed_s = time.monotonic() - self._began_s
        return max(0.0, read_machine().idle_s - self._idle_s) / elapsed_s if elapsed_s > 0 else 0.0
