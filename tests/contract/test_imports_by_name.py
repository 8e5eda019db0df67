"""Modules are imported by statements, which import-linter reads; names in strings would hide an arrow or a circle.

A string may name a module of naiad in the two tables whose modules are imported when they are needed, and for a
program that is started as `python -m`. A module that imports others of its own package by name writes `__package__`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

TABLES = {
    "naiad/config/backends.py": "a server imports only the backends that its models use",
    "naiad/cli/main.py": "a command imports only the module of its verb",
}
EXCEPTIONS = {
    "naiad/integrations/airflow/__init__.py": "the description of the provider, whose modules Airflow imports",
}
_NAME = re.compile(r"naiad(\.\w+)+(:\w+)?")


def is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def is_program(name: str) -> bool:
    path = SOURCE.joinpath(*name.split(".")).with_suffix(".py")
    return path.is_file() and '\nif __name__ == "__main__":\n' in path.read_text(encoding="utf-8")


def names_a_module(text: str) -> bool:
    """Return whether a string is the name of a module, or of something in it, and not that of a program."""
    if not _NAME.fullmatch(text):
        return False
    name = text.partition(":")[0]
    owner = name.rpartition(".")[0]
    return (is_module(name) or (owner != "naiad" and is_module(owner))) and not is_program(name)


def strings_with_modules(tree: ast.AST) -> Iterator[str]:
    """Yield the strings that name modules, or begin with "naiad." and are put together; no names of loggers."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Call(func=ast.Attribute(attr="getLogger")):
                continue
            case ast.Constant(value=str(text)) if names_a_module(text):
                yield text
            case (
                ast.JoinedStr(values=[ast.Constant(value=str(text)), ast.FormattedValue(), *_])
                | ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Add() | ast.Mod())
            ) if re.fullmatch(r"naiad\.[\w.%]*", text):
                yield text
        yield from strings_with_modules(node)


def files_with_modules() -> dict[str, list[str]]:
    found = {}
    for path in sorted((SOURCE / "naiad").rglob("*.py")):
        if path.name.endswith("_pb2.py"):  # generated: protobuf names the module that it makes
            continue
        if strings := list(strings_with_modules(ast.parse(path.read_text(encoding="utf-8")))):
            found[path.relative_to(SOURCE).as_posix()] = strings
    return found


def test_only_the_tables_name_modules_in_strings() -> None:
    found = files_with_modules()
    assert {name: strings for name, strings in found.items() if name not in TABLES | EXCEPTIONS} == {}
    assert found.keys() == TABLES.keys() | EXCEPTIONS.keys(), "an exception that is not needed any more"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('importlib.import_module("naiad.backend.registry")', ["naiad.backend.registry"]),
        ('POINT = "naiad.backend.identity:IdentityBackend"', ["naiad.backend.identity:IdentityBackend"]),
        ('HOOK = "naiad.backend.identity.IdentityBackend"', ["naiad.backend.identity.IdentityBackend"]),
        ('importlib.import_module(f"naiad.bind.{name}")', ["naiad.bind."]),
        ('importlib.import_module("naiad.bind." + name)', ["naiad.bind."]),
        ('importlib.import_module("naiad.%s" % name)', ["naiad.%s"]),
        ('"naiad.backend.registry"', []),
        ('logging.getLogger("naiad.tools.predict")', []),
        ('command = ["-m", "naiad.tools.optimize.profile.child"]', []),
        ('GROUP = "naiad.backends"', []),
        ("from naiad.backend import registry", []),
    ],
)
def test_names_in_strings_are_found(source: str, expected: list[str]) -> None:
    assert list(strings_with_modules(ast.parse(source))) == expected
