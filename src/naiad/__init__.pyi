"""The types of `__init__.py`, whose import of `optimize` is lazy."""

from naiad.tools.optimize.api import optimize as optimize

__version__: str
