"""`naiad new`: write an initial package."""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from naiad.cli.parser import Parser, fail
from naiad.config.backends import BUILT_IN
from naiad.core.errors import InferError, invalid_argument

_DESCRIPTION = """\
Write a Python package with a backend: an entry point, a module with three small classes, tests and an example model.
It works unchanged; replace its computation with calls of a framework.

naiad new backend NAME     NAME is the 'backend' in config.pbtxt: letters, digits, '-' and '_'

The exit status is 1 if the package cannot be written, 2 for an invalid command line.
"""
_TEMPLATES = Path(__file__).parent / "templates" / "backend"
_NAME = re.compile(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*")
_FILES: Mapping[str, str] = {
    "pyproject.toml": "pyproject.toml.template",
    "README.md": "README.md.template",
    "src/@PACKAGE@/__init__.py": "init.py.template",
    "src/@PACKAGE@/backend.py": "backend.py.template",
    "tests/test_backend.py": "test_backend.py.template",
    "models/example/config.pbtxt": "config.pbtxt.template",
    "models/example/1/model.json": "model.json.template",
}
"""Path in the package to its template."""


def run(argv: Sequence[str]) -> int:
    """Write the package and return the exit status."""
    options = make_parser().parse_args(argv)
    directory: Path = options.directory or Path(f"naiad-{options.name.replace('_', '-')}")
    try:
        write_backend(options.name, directory)
    except InferError as error:
        return fail("naiad new", error.message)
    except OSError as error:
        return fail("naiad new", f"{error.filename} cannot be written: {error.strerror}")
    print(f"wrote {directory}\nnext: cd {directory} && pip install -e '.[test]' && pytest && naiad serve models")
    return 0


def write_backend(name: str, directory: Path) -> None:
    """Write a package with the backend `name` into a new or empty directory.

    Raises InferError(INVALID_ARG) for a name that cannot be used and a directory with files, and OSError.
    """
    if not _NAME.fullmatch(name):
        raise invalid_argument(
            f"'{name}' cannot be the name of a backend; use lower-case letters and digits, with single '-' or '_' "
            "between them, as in my-framework"
        )
    if name in BUILT_IN:
        raise invalid_argument(f"naiad has a backend '{name}'; choose another name")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise invalid_argument(f"{directory} exists and is not empty; choose another with --directory")
    values = {
        "@NAME@": name,
        "@DASHED@": name.replace("_", "-"),
        "@PACKAGE@": "naiad_" + name.replace("-", "_"),
        "@CLASS@": "".join(word.capitalize() for word in re.split("[_-]", name)),
    }
    for target, template in _FILES.items():
        path = directory / _filled(target, values)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (_TEMPLATES / template).read_text(encoding="utf-8")
        path.write_text(_filled(text, values), encoding="utf-8")


def _filled(text: str, values: Mapping[str, str]) -> str:
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = Parser(prog="naiad new", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["backend"], help="what to write")
    parser.add_argument("name", metavar="NAME", help="name of the backend")
    parser.add_argument(
        "--directory", type=Path, metavar="DIR", help="where to write the package; default: naiad-NAME"
    )
    return parser
