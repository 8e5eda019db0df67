"""Modules are imported by statements, which import-linter reads; names in strings would hide an arrow or a circle.

A string may name a module of naiad in the two tables whose modules are imported when they are needed, and for a
program that is started as `python -m`. A module that imports others of its own package by name writes `__package__`.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from naiad.cli.verbs import VERBS
from naiad.config.backends import BUILT_IN, ISOLATED, ISOLATION_ADAPTER, PYTHON_BASED, TEMPLATE_TRIAL

SOURCE = Path(__file__).parents[2] / "src"

TABLES = {
    "naiad/config/backends.py": "a server imports only the backends that its models use",
    "naiad/cli/verbs.py": "a command imports only the module of its verb",
}
EXCEPTIONS = {
    "naiad/integrations/airflow/__init__.py": "the description of the provider, whose modules Airflow imports",
}
IMPORTED_BY_NAME = {
    "naiad.backend.loading": {*BUILT_IN.values(), PYTHON_BASED, ISOLATED},
    "naiad.worker.model_class": {ISOLATION_ADAPTER, TEMPLATE_TRIAL},
    "naiad.cli.main": {module for module, _ in VERBS.values()},
    "naiad.cli.completion": {module for module, _ in VERBS.values() if module != "naiad.cli.completion"},
}
"""The modules that import what the tables name."""
_NAME = re.compile(r"naiad(\.\w+)+(:\w+)?")


@cache
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


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Yield the names of modules that statements import, those in functions too; not those for types alone."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                for each in (f"{module}.{alias.name}" for alias in names):
                    yield each if is_module(each) else module
            case ast.stmt() | ast.ExceptHandler() | ast.match_case():
                yield from imports_of(node)


@cache
def modules() -> dict[str, tuple[list[str], frozenset[str]]]:
    """Return the files of naiad, each with its strings that name modules and with the modules that it imports."""
    found = {}
    for path in sorted((SOURCE / "naiad").rglob("*.py")):
        if not path.name.endswith("_pb2.py"):  # generated: protobuf names the module that it makes
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
            strings = list(strings_with_modules(tree)) if '"naiad.' in text else []
            found[path.relative_to(SOURCE).as_posix()] = strings, frozenset(imports_of(tree))
    return found


def test_only_the_tables_name_modules_in_strings() -> None:
    found = {file: strings for file, (strings, _) in modules().items() if strings}
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
        ('command = ["-m", "naiad.tools.optimize.profile.profile_child"]', []),
        ('GROUP = "naiad.backends"', []),
        ("from naiad.backend import registry", []),
    ],
)
def test_names_in_strings_are_found(source: str, expected: list[str]) -> None:
    assert list(strings_with_modules(ast.parse(source))) == expected


def graph() -> dict[str, set[str]]:
    """Return the modules of naiad, each with the modules that it imports."""
    found: dict[str, set[str]] = {}
    for file, (_, imported) in modules().items():
        name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        found[name] = {each for each in imported if f"{each}.".startswith("naiad.") and not each.endswith("_pb2")} - {
            name
        }
    return found


def test_no_circle_of_imports_even_by_name() -> None:
    imported = graph()
    for importer, named in IMPORTED_BY_NAME.items():
        imported[importer] |= {name.partition(":")[0] for name in named}
    assert len(list(TopologicalSorter(imported).static_order())) == len(imported)


def test_circle_by_a_name_is_found() -> None:
    imported = graph()
    imported["naiad.backend.loading"].add("naiad.backend.registry")
    with pytest.raises(CycleError, match="in a cycle"):
        TopologicalSorter(imported).prepare()
