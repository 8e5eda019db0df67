"""A real browser, headless, that opens a page; tests that need it are skipped where none is installed."""

import http.server
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first has no windows: others start a process for the one of each page, in a second of CPU time."""
PROGRAM = next(filter(None, map(shutil.which, _PROGRAMS)), None)
needs_browser = pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed")
_REPORT = "/report"
_SCRIPT = """<!doctype html><title>page</title><script type="module">
const results = {};
for (const [name, [url, options]] of Object.entries(REQUESTS)) {
  try {
    const response = await fetch(url, options);
    results[name] = response.type === "opaque" ? "opaque" : response.status;
  } catch (error) {
    results[name] = String(error);
  }
}
await fetch("/report", {method: "POST", body: JSON.stringify(results)});
</script>"""


class PageServer:
    """Serves one page, which makes requests and reports what came of them."""

    def __init__(self) -> None:
        self.results: queue.Queue[dict[str, Any]] = queue.Queue()
        self.page = b""
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(owner.page)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(204)
                self.end_headers()
                owner.results.put(json.loads(body))

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]

    def fetch_all(self, host: str, requests: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
        """Let a page of the origin `http://host:port` fetch URLs with options; return what came of each."""
        self.page = _SCRIPT.replace("REQUESTS", json.dumps(requests)).encode()
        assert PROGRAM is not None
        with tempfile.TemporaryDirectory() as profile:
            browser = subprocess.Popen(
                [
                    *(PROGRAM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                    *("--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}"),
                    *("--host-resolver-rules=MAP *.example 127.0.0.1", "--remote-debugging-port=0"),
                    f"http://{host}:{self.port}/",
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                return self.results.get(timeout=90)
            finally:
                browser.terminate()
                browser.wait(30)


@contextmanager
def page_server() -> Iterator[PageServer]:
    """Run a server of pages on a free port."""
    pages = PageServer()
    thread = threading.Thread(target=pages.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield pages
    finally:
        pages.server.shutdown()
        pages.server.server_close()
        thread.join()
