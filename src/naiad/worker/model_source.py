"""The import of Python files of a model: always from the source.

Python takes a compiled file for current if its source has the same size and the same second of its time of change
(PEP 552). A model that is updated twice in a second, or from an image whose files have equal times, would run the old
code. So the files of models are compiled at each load, and nothing is written beside them. Packages of an
environment are imported as usual, also if the environment is in the model's directory.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import types
from typing import Any

_directories: set[str] = set()


class SourceLoader(importlib.machinery.SourceFileLoader):
    """Loads a module from its source and reads no compiled file."""

    def get_code(self, fullname: str) -> types.CodeType:
        """Return the compiled source. Raises SyntaxError and OSError."""
        path = self.get_filename(fullname)
        code: types.CodeType = self.source_to_code(self.get_data(path), path)
        return code


def import_from_source(*directories: str) -> None:
    """Have modules below directories imported from their source, from now on in this process."""
    if not _directories:
        sys.path_hooks.insert(0, _finder)
    for directory in directories:
        _directories.add(os.path.join(os.path.abspath(directory), ""))
        sys.path_importer_cache.pop(directory, None)


def _finder(path: str) -> Any:
    """Return the finder of a directory of a model. Raises ImportError for others, see `sys.path_hooks`."""
    whole = os.path.join(os.path.abspath(path), "")
    is_of_environment = whole.startswith(os.path.join(sys.prefix, ""))
    if is_of_environment or not any(whole.startswith(each) for each in _directories) or not os.path.isdir(path):
        raise ImportError(f"{path} is no directory of a model")
    return importlib.machinery.FileFinder(
        path,
        (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES),
        (SourceLoader, importlib.machinery.SOURCE_SUFFIXES),
        (importlib.machinery.SourcelessFileLoader, importlib.machinery.BYTECODE_SUFFIXES),
    )
