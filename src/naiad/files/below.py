"""The files that make up a model: those below its folder, without what Python leaves there when it runs them."""

from pathlib import Path

COMPILED_DIR = "__pycache__"
"""Python writes it beside a module that it imports, such as a model.py: to load a model is not to change it."""


def files_below(path: Path) -> list[Path]:
    """Return the files below a folder, sorted, without compiled Python; of a file itself alone."""
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.rglob("*") if each.is_file())
    return [each for each in found if COMPILED_DIR not in each.relative_to(path).parts]
