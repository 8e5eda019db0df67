"""Examples on the pages work: configurations parse, flags exist, Python compiles."""

import ast
import json
import re
import shlex
import textwrap
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from naiad.config.forms.pbtxt.text_format import parse_pbtxt
from naiad.options.sources.command_line import OptionError, parse_options

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
OPENING = re.compile(
    r"^(name|platform|backend|max_batch_size|input|output|dynamic_batching|sequence_batching|parameters|"
    r"instance_group|model_\w+|ensemble_scheduling|response_cache|version_policy|optimization)\b *[:{\[]"
)
INLINE_COMMAND = re.compile(r"`(naiad serve (?!--help)[^`]+)`")


def blocks(accepts: Callable[[str, str], bool]) -> list[Any]:
    """Return the text of each block whose language and text are accepted; the page is named with the line."""
    accepted = []
    for page in PAGES:
        text = page.read_text()
        for found in BLOCK.finditer(text):
            content = textwrap.dedent(found[4])
            if accepts(found[2], content):
                line = text.count("\n", 0, found.start()) + 1
                accepted.append(pytest.param(content, id=f"{page.name}:{line}"))
    return accepted


def is_configuration(language: str, text: str) -> bool:
    return language in ("", "text", "protobuf") and OPENING.match(text) is not None


def is_shell(language: str, text: str) -> bool:
    return language in ("sh", "bash") or (not language and "naiad serve" in text)


def serve_commands() -> list[Any]:
    """Return the arguments of every `naiad serve` on a page, in blocks and in lines."""
    commands = []
    for param in blocks(is_shell):
        (text,), name = param.values, param.id
        for command in text.replace("\\\n", " ").splitlines():
            if command.startswith("naiad serve "):
                words = shlex.split(command, comments=True)
                commands.append(pytest.param(words[2:], id=f"{name} {' '.join(words[2:4])}"))
    for page in PAGES:
        for found in INLINE_COMMAND.finditer(page.read_text()):
            commands.append(pytest.param(shlex.split(found[1])[2:], id=f"{page.name} {found[1]}"))
    return commands


@pytest.mark.parametrize("text", blocks(is_configuration))
def test_a_configuration_has_no_mistake_of_form(text: str) -> None:
    parsed = parse_pbtxt(text.replace("...", ""))
    assert not [str(problem) for problem in parsed.problems]


@pytest.mark.parametrize("arguments", serve_commands())
def test_a_command_has_flags_that_there_are(arguments: list[str]) -> None:
    if not any(not argument.startswith("-") or "model-repository" in argument for argument in arguments):
        arguments = ["models", *arguments]
    try:
        parse_options(arguments)
    except OptionError as error:
        pytest.fail(str(error))


@pytest.mark.parametrize("text", blocks(lambda language, _: language == "python"))
def test_python_compiles(text: str) -> None:
    compile(text, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("text", blocks(lambda language, text: language == "python" and "naiad" in text))
def test_python_imports_names_that_there_are(text: str) -> None:
    """Modules are read, not imported: frameworks need not be installed."""
    tree = compile(text, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("naiad."):
            path = ROOT / "src" / node.module.replace(".", "/")
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            assert file.exists(), f"{node.module} is no module"
            names = {*re.findall(r"\w+", file.read_text()), *(each.stem for each in path.glob("*"))}
            assert {each.name for each in node.names} <= names, f"{node.module} lacks a name"


@pytest.mark.parametrize("text", blocks(lambda language, _: language == "json"))
def test_json_parses(text: str) -> None:
    json.loads(text)


def anchor_of(heading: str) -> str:
    """Return the anchor of a heading in Python-Markdown."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def links() -> list[Any]:
    """Return page and anchor of every link to an anchor in a page."""
    found = []
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([\w/-]+\.md)?#([\w-]+)\)", page.read_text()):
            to = page.parent / target if target else page
            found.append(pytest.param(to, anchor, id=f"{page.name}-{target}-{anchor}"))
    return found


@pytest.mark.parametrize(("page", "anchor"), links())
def test_a_link_leads_somewhere(page: Path, anchor: str) -> None:
    text = BLOCK.sub("", page.read_text())
    assert anchor in {anchor_of(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("text", blocks(lambda language, _: language == "toml"))
def test_toml_parses(text: str) -> None:
    tomllib.loads(text)


@pytest.mark.parametrize(
    "page",
    [
        "bls",
        "custom-batching",
        "ensembles",
        "padding",
        "ragged-batching",
        "rate-limiter",
        "response-cache",
        "scheduling",
        "scheduling-rules",
        "sequences",
    ],
)
def test_page_on_a_scheduler_has_a_picture(page: str) -> None:
    assert "```mermaid" in (ROOT / "docs" / f"{page}.md").read_text()
