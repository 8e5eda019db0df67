"""The file of `--ready-file`: where a program that has started this server reads the ports that it has.

    {"version": "0.1.0", "pid": 4711, "ready": true,
     "http": {"url": "http://127.0.0.1:8000", "port": 8000}, "grpc": {"url": "127.0.0.1:8001", "port": 8001}, ...}

It appears at once, when the start is over, and is removed when the server begins to exit, before it drains. After
SIGKILL it stays; the next server with the same flag removes it before it loads models.
"""

import contextlib
import errno
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from naiad.core.errors import invalid_argument
from naiad.core.version import __version__
from naiad.files.replacement import replace_file
from naiad.options.options import ServerOptions
from naiad.server.reporting.report import client_urls

_log = logging.getLogger(__name__)


class ReadyFile:
    """The file at a path; without a path nothing is written."""

    def __init__(self, path: str) -> None:
        """Remove what an earlier server has left. Raises InferError(INVALID_ARG) where no file can be written."""
        self._path = Path(path).absolute() if path else None
        self._written = b""
        if self._path is not None:
            _prepare(self._path, f"--ready-file {path}")

    def write(self, options: ServerOptions, bound: Mapping[str, int], *, is_ready: bool) -> None:
        """Write the document. `bound` has the bound port by the prefix of its flags.

        A failure is logged: the server serves without the file, too.
        """
        if self._path is None:
            return
        content = json.dumps(ready_document(options, bound, is_ready=is_ready)).encode() + b"\n"
        try:
            replace_file(self._path, content, is_durable=False)
        except OSError as error:
            _log.error("--ready-file %s cannot be written: %s", self._path, error.strerror)
        else:
            self._written = content

    def remove(self) -> None:
        """Remove the file, unless a server that has started since has replaced it."""
        if self._path is None or not self._written:
            return
        with contextlib.suppress(OSError):  # Something else has removed it.
            if self._path.read_bytes() == self._written:
                self._path.unlink()


def _prepare(path: Path, flag: str) -> None:
    if not path.parent.is_dir():
        raise invalid_argument(f"{flag}: there is no folder {path.parent}; make it or choose another path")
    if path.is_dir():
        raise invalid_argument(f"{flag} is a folder; choose the path of a file")
    try:
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        path.unlink(missing_ok=True)
    except OSError as error:
        raise invalid_argument(f"{flag}: {error.strerror}; choose a path that can be written") from None


def ready_document(options: ServerOptions, bound: Mapping[str, int], *, is_ready: bool) -> dict[str, Any]:
    """Return the document of the file."""
    ports = {"grpc": bound.get("http", 0), **bound}  # gRPC may share the port of HTTP.
    services = {flag: {"url": url, "port": ports[flag]} for flag, url in client_urls(options, bound).items()}
    return {"version": __version__, "pid": os.getpid(), "ready": is_ready, **services}
