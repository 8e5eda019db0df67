"""The version of this package, and its directory."""

from pathlib import Path

__version__ = "0.1.0"

PACKAGE_DIR = Path(__file__).parents[1]
"""The directory of the package `naiad`, which other interpreters import it from."""
