"""The module that Python models import as `pb_utils`, for editors, type checkers and tests outside the server.

Inside a worker this name stands for the worker's own copy of the same module.
"""

from naiad.worker.api.pb_utils import *  # noqa: F403 - the same names, all of them
from naiad.worker.api.pb_utils import __all__ as __all__
from naiad.worker.api.pb_utils import __getattr__ as __getattr__
