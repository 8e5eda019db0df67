"""docs/security.md and docs/ports.md agree with the flags: names exist, defaults are right, limits are complete."""

import re
from pathlib import Path

import pytest

from naiad.options.flags import all_flags
from naiad.options.options import ServerOptions

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("security.md", "ports.md")
ROW = re.compile(r"^- `--([a-z0-9-]+)` \(([^)]+)\): ", re.MULTILINE)
FLAG = re.compile(r"--([a-z][a-z0-9-]+[a-z0-9])")
OF_OTHER_PROGRAMS = {
    "http2",
    "http2-prior-knowledge",
    "unix-socket",
    "list",
    "protocol",
    "short",
    "with-keys",
    "limit",
}


def defaults() -> list[tuple[str, str, str]]:
    rows = []
    for page in PAGES:
        rows += [(page, name, default.strip()) for name, default in ROW.findall((DOCS / page).read_text())]
    return [row for row in rows if re.fullmatch(r"\d+|true|false", row[2])]


def default_of(name: str) -> object:
    flag = next(flag for flag in all_flags() if flag.name == name)
    value: object = ServerOptions()
    for part in flag.target.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize(("page", "name", "written"), defaults())
def test_page_defaults_equal_server_defaults(page: str, name: str, written: str) -> None:
    assert str(default_of(name)).lower().removesuffix(".0") == written


@pytest.mark.parametrize("page", PAGES)
def test_flags_on_the_pages_exist(page: str) -> None:
    known = {flag.name for flag in all_flags()} | OF_OTHER_PROGRAMS
    named = set(FLAG.findall((DOCS / page).read_text()))
    assert len(named) > 10
    assert named <= known, named - known


def test_every_limit_has_its_row() -> None:
    limits = {
        flag.name
        for flag in all_flags()
        if flag.target and flag.name.startswith(("http-", "grpc-")) and re.search("max-|timeout|keepalive", flag.name)
    }
    rows = {name for _, name, _ in defaults()}
    assert limits - rows == set()


@pytest.mark.parametrize("page", PAGES)
def test_pages_are_in_the_navigation(page: str) -> None:
    assert page in (DOCS.parent / "mkdocs.yml").read_text()
