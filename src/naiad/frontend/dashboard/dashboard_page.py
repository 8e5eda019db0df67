"""The files of the dashboard's page: `GET /` and `GET /dashboard/{file}`.

The files are built from `dashboard/` and committed. The policy of the page allows its own files and no other: no
script or style within the page, nothing of another origin, and no frame around it. All its addresses are relative, so
a proxy may add a prefix to the path.
"""

import functools
import gzip
import hashlib
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from naiad.core.errors import excerpt, not_found
from naiad.frontend.access.peer import is_local
from naiad.frontend.context import HttpContext
from naiad.frontend.long_work.thread_pool import RunInThread, run_at_once
from naiad.frontend.router import Action, refuse, respond_failure
from naiad.operations.dashboard import DASHBOARD, DASHBOARD_FILE
from naiad.operations.operation import AnyOperation
from naiad.wire.header_fields import Headers

FILES = Path(__file__).with_name("files")
PAGE = "index.html"
_MEDIA_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".json": b"application/json",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
    ".woff2": b"font/woff2",
}
"""Files of other kinds are not served."""
_COMPRESSED = frozenset((".html", ".js", ".css", ".json", ".svg"))
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "font-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
).encode()
_SECURITY: Headers = (
    (b"Content-Security-Policy", _POLICY),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"X-Frame-Options", b"DENY"),
    (b"Referrer-Policy", b"no-referrer"),
    (b"Cross-Origin-Resource-Policy", b"same-origin"),
)
_HASHED = re.compile(r"[.-][0-9A-Za-z_]{8,}\.[a-z0-9]+")
"""The end of a name with a digest of the content, such as `app.3f2a1b9c.js`: such a file never changes."""
_LOCAL_ONLY = (
    "the dashboard is served to browsers on the server's machine; start the server with --allow-dashboard=true to"
    " serve it to all"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file with what its responses consist of."""

    headers: Headers
    body: bytes
    compressed: bytes
    """The same with gzip; empty if that is not smaller."""
    etag: bytes


class DashboardFiles:
    """The files, read and compressed when they are first requested, and again when they have changed."""

    def __init__(self, folder: Path = FILES) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._files: dict[str, tuple[tuple[int, int], PageFile]] = {}
        """Bounded by the files of the folder."""

    def read(self, name: str) -> PageFile:
        """Return a file; blocks. Raises InferError(NOT_FOUND) for a name that is none."""
        path = self._folder / name
        if not _NAME.fullmatch(name) or path.suffix not in _MEDIA_TYPES:
            raise _no_file(name)
        try:
            status = path.stat()
            key = (status.st_mtime_ns, status.st_size)
            with self._lock:
                known = self._files.get(name)
                if known is None or known[0] != key:
                    known = self._files[name] = (key, _page_file(name, path.read_bytes()))
        except OSError:
            raise _no_file(name) from None
        return known[1]


def _no_file(name: str) -> Exception:
    return not_found(f"the dashboard has no file '{excerpt(name)}'")


def _page_file(name: str, body: bytes) -> PageFile:
    suffix = Path(name).suffix
    # mtime 0: the same file has the same bytes in every process.
    compressed = gzip.compress(body, mtime=0) if suffix in _COMPRESSED else b""
    etag = b'"%s"' % hashlib.sha256(body).hexdigest()[:32].encode()
    is_fixed = name != PAGE and _HASHED.search(name) is not None
    headers = (
        (b"Content-Type", _MEDIA_TYPES[suffix]),
        (b"Cache-Control", b"public, max-age=31536000, immutable" if is_fixed else b"no-cache"),
        (b"ETag", etag),
        (b"Vary", b"Accept-Encoding"),
        *_SECURITY,
    )
    return PageFile(headers, body, compressed if len(compressed) < len(body) else b"", etag)


class DashboardRoutes:
    """The actions of the page and its files."""

    def __init__(
        self,
        run_in_thread: RunInThread = run_at_once,
        files: DashboardFiles | None = None,
        *,
        local_only: bool = False,
    ) -> None:
        """`run_in_thread` reads and compresses the files. With `local_only`, other machines are refused."""
        self._run_in_thread = run_in_thread
        self._local_only = local_only
        self._files = files or DashboardFiles()

    def actions(self) -> Mapping[AnyOperation, Action]:
        """Return the actions of operations."""
        return {DASHBOARD: self._page, DASHBOARD_FILE: self._file}

    def checks(self) -> Mapping[AnyOperation, Action]:
        """Return what rejects requests by their headers: nothing."""
        return {}

    def _page(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._respond(context, PAGE)

    def _file(self, context: HttpContext, arguments: Mapping[str, str]) -> None:
        self._respond(context, arguments["file"])

    def _respond(self, context: HttpContext, name: str) -> None:
        if self._local_only and not is_local(context.client):
            refuse(context, 403, _LOCAL_ONLY)
            return
        self._run_in_thread(
            functools.partial(self._files.read, name),
            functools.partial(respond_file, context),
            functools.partial(respond_failure, context),
        )


def respond_file(context: HttpContext, file: PageFile) -> None:
    """Respond with a file, compressed if the client accepts that, or with 304 if the client has it."""
    if file.etag in context.headers.get(b"if-none-match", b""):
        context.respond(304, [field for field in file.headers if field[0] != b"Content-Type"], ())
    elif file.compressed and _accepts_gzip(context.headers.get(b"accept-encoding", b"")):
        context.respond(200, [*file.headers, (b"Content-Encoding", b"gzip")], (file.compressed,))
    else:
        context.respond(200, file.headers, (file.body,))


def _accepts_gzip(field: bytes) -> bool:
    for part in field.lower().split(b","):
        coding, _, weight = part.partition(b";")
        if coding.strip() == b"gzip":
            return not re.fullmatch(rb"\s*q\s*=\s*0(\.0*)?\s*", weight)
    return False
