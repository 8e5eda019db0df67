"""The files of the dashboard: their header fields, compression, caching, and names that are none of them."""

import gzip
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from naiad.core.errors import InferError
from naiad.frontend.dashboard.dashboard_page import FILES, PAGE, DashboardFiles, DashboardRoutes, respond_file
from naiad.operations.dashboard import DASHBOARD


def respond(files: DashboardFiles, name: str, **headers: str):
    answers = []
    fields = {key.replace("_", "-").encode(): value.encode() for key, value in headers.items()}
    context = SimpleNamespace(
        headers=fields, respond=lambda status, found, parts: answers.append((status, dict(found), b"".join(parts)))
    )
    respond_file(context, files.read(name))
    ((status, found, body),) = answers
    return status, found, body


@pytest.mark.parametrize(
    ("peer", "own", "is_served"),
    [
        (("127.0.0.1", 5000), ("127.0.0.1", 8000), True),
        (("::ffff:127.0.0.1", 5000, 0, 0), ("::ffff:127.0.0.1", 8000, 0, 0), True),
        (("10.0.0.5", 5000), ("10.0.0.5", 8000), True),
        ("", "/run/naiad.sock", True),
        (("10.0.0.6", 5000), ("10.0.0.5", 8000), False),
        (("172.17.0.1", 5000), ("172.17.0.2", 8000), False),
        (("fe80::1%eth0", 5000, 0, 2), ("fe80::2%eth0", 8000, 0, 2), False),
    ],
)
@pytest.mark.parametrize("local_only", [True, False])
def test_without_the_flag_other_machines_get_no_page(peer, own, is_served: bool, local_only: bool) -> None:
    answers = []
    names = {"peername": peer, "sockname": own}
    context = SimpleNamespace(
        headers={},
        method="GET",
        path="/",
        client=SimpleNamespace(transport=SimpleNamespace(get_extra_info=names.get)),
        respond=lambda status, fields, parts: answers.append((status, b"".join(parts))),
    )
    DashboardRoutes(local_only=local_only).actions()[DASHBOARD](context, {})
    ((status, body),) = answers
    assert status == (200 if is_served or not local_only else 403)
    assert (b"--allow-dashboard=true" in body) == (status == 403)


def test_page_allows_only_its_own_files() -> None:
    status, headers, body = respond(DashboardFiles(), PAGE)
    assert status == 200
    policy = dict(part.split(" ", 1) for part in headers[b"Content-Security-Policy"].decode().split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in str(policy)
    assert headers[b"X-Content-Type-Options"] == b"nosniff"
    page = body.decode()
    assert "<script>" not in page
    assert "<style" not in page
    assert "://" not in page  # nothing of another origin, and a proxy may add a prefix
    assert '="/' not in page


def test_every_built_file_is_served() -> None:
    files = DashboardFiles()
    for path in FILES.iterdir():
        status, _, body = respond(files, path.name)
        assert (status, body) == (200, path.read_bytes())


def test_known_files_are_not_sent_again(tmp_path: Path) -> None:
    (tmp_path / "app.js").write_text("let a = 1;" * 100)
    files = DashboardFiles(tmp_path)
    _, headers, body = respond(files, "app.js", accept_encoding="br;q=1, gzip;q=0.5")
    assert headers[b"Content-Encoding"] == b"gzip"
    assert gzip.decompress(body) == (tmp_path / "app.js").read_bytes()
    assert b"Content-Encoding" not in respond(files, "app.js", accept_encoding="gzip;q=0")[1]
    etag = headers[b"ETag"].decode()
    status, again, empty = respond(files, "app.js", if_none_match=f'"other", W/{etag}')
    assert (status, again[b"ETag"].decode(), empty) == (304, etag, b"")


def test_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "app.css"
    path.write_text("a {}")
    files = DashboardFiles(tmp_path)
    before = files.read("app.css")
    path.write_text("b {}")
    os.utime(path, ns=(1, 1))
    after = files.read("app.css")
    assert (before.body, after.body) == (b"a {}", b"b {}")
    assert before.etag != after.etag


def test_only_names_with_a_digest_never_change(tmp_path: Path) -> None:
    for name in ("app.js", "app.3f2a1b9c.js", "index.html"):
        (tmp_path / name).write_text("x")
    files = DashboardFiles(tmp_path)
    cached = {name: respond(files, name)[1][b"Cache-Control"] for name in ("app.js", "app.3f2a1b9c.js", "index.html")}
    assert cached["app.js"] == cached["index.html"] == b"no-cache"
    assert b"immutable" in cached["app.3f2a1b9c.js"]


@pytest.mark.parametrize(
    "name", ["..", "../live_feed.py", "a/b.js", ".htaccess", "app.js\0", "none.js", "page.py", ""]
)
def test_other_names_are_not_found(name: str) -> None:
    with pytest.raises(InferError, match="the dashboard has no file"):
        DashboardFiles().read(name)
