"""Files that may change while the server runs: certificates and API keys."""

import logging
import os
from collections.abc import Callable, Sequence

from naiad.core.environment.ports import Loop, TimerHandle
from naiad.core.errors import InferError, internal
from naiad.options.network.access_options import ApiKeys, parse_api_keys

_log = logging.getLogger(__name__)

_INTERVAL_S = 1.0

_Signature = tuple[tuple[int, int, int], ...]


class FileWatch:
    """Calls `reload` after one of `paths` has changed; an exception is logged and the old content stays in use."""

    def __init__(self, loop: Loop, paths: Sequence[str], reload: Callable[[], None]) -> None:
        self._loop = loop
        self._paths = paths
        self._reload = reload
        self._seen = self._signature()
        self._timer: TimerHandle | None = None

    def start(self) -> None:
        """Start to check, once a second."""
        self._timer = self._loop.call_later(_INTERVAL_S, self._on_timer)

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self.start()
        self.check()

    def check(self) -> None:
        """Check once."""
        signature = self._signature()
        if signature == self._seen:
            return
        self._seen = signature
        try:
            self._reload()
        except InferError as error:
            _log.error("%s; the previous content stays in use", error.message)
        else:
            _log.info("read again: %s", ", ".join(self._paths))

    def _signature(self) -> _Signature:
        return tuple([_state_of(path) for path in self._paths])


def _state_of(path: str) -> tuple[int, int, int]:
    try:
        # Status of the target of a link: mounted secrets are replaced by their link.
        state = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (state.st_mtime_ns, state.st_size, state.st_ino)


def read_api_keys(path: str) -> ApiKeys:
    """Return the keys of the file at `path`. Raises InferError that names flag, file and line."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        raise internal(f"--api-key-file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise internal(f"--api-key-file {path} is not text") from error
    try:
        return parse_api_keys(text)
    except ValueError as error:
        raise internal(f"--api-key-file {path}: {error}") from error
