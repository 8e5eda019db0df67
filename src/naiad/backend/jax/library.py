"""JAX, imported in one place: it takes memory of a GPU as it needs it.

By default JAX reserves three quarters of a GPU when it first uses it, which leaves too little for models of other
frameworks and other processes. A variable that is set already stays.
"""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax as jax
import jax.dlpack as dlpack
from jax import export as export

__all__ = ["dlpack", "export", "jax"]
