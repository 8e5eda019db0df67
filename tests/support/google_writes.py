"""A door of fake-gcs-server for simple uploads of Google's XML API, which it takes only with a signature."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from support.store_emulators import Emulator

_SIGNED = "X-Goog-Algorithm=GOOG4-RSA-SHA256"
_OWN = ("authorization", "host")
_KEPT = ("etag", "x-goog-generation")


class GoogleWrites:
    """Passes requests on; `endpoint` is its own address."""

    def __init__(self, emulator: Emulator) -> None:
        place = urlsplit(emulator.endpoint)
        _Passing.place = (str(place.hostname), place.port or 80)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Passing)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)


class _Passing(BaseHTTPRequestHandler):
    place: tuple[str, int]
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        is_upload = self.command == "PUT"
        path = f"{self.path}?{_SIGNED}" if is_upload else self.path
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
        status, found, content = self._ask(self.command, path, body, headers)
        if is_upload and status == http.client.OK:
            marks = self._ask("HEAD", self.path, b"", {})[1]
            found |= {name: value for name, value in marks.items() if name.lower() in _KEPT}
        self.send_response(status)
        for name, value in found.items():
            if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                self.send_header(name, value)
        length = found.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

    def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(*self.place, timeout=60)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def log_message(self, *arguments: object) -> None:
        pass
