"""protobuf's implementation in Python, which is imported only by an installation without the one in C.

Each module that `protoc` has generated imports it all the same: eleven modules, 0.7 MiB, and a third of the time that
protobuf's import takes. Here it is a module that is executed when code asks for something in it.

`importlib.util.LazyLoader` makes such modules too. Before Python 3.12 a thread that asks while another one executes
the module finds only a part of it, and any look at all modules, such as that of `inspect.getmodule`, executes it.
"""

import importlib.util
import sys
import threading
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PACKAGE = "google.protobuf.internal"
_MODULE = "python_message"


def delay_protobuf_in_python() -> None:
    """Have the first use of the implementation in Python import it; no effect once it has been imported."""
    name = f"{_PACKAGE}.{_MODULE}"
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return  # another version of protobuf
    module = importlib.util.module_from_spec(spec)
    _execute_when_used(module, spec)
    sys.modules[name] = module
    # `from package import module` finds it here, and does not look into the module, which would execute it.
    package: ModuleType = sys.modules[_PACKAGE]
    setattr(package, _MODULE, module)


def _execute_when_used(module: ModuleType, spec: ModuleSpec) -> None:
    """Execute a module when a name is asked for that it does not have yet; other threads wait for the end of that."""
    lock = threading.RLock()
    is_executing = False

    def find(name: str) -> Any:
        nonlocal is_executing
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module '{spec.name}' has no attribute '{name}'")
        with lock:
            if not is_executing and vars(module).get("__getattr__") is find:
                is_executing = True
                try:
                    assert spec.loader is not None
                    spec.loader.exec_module(module)
                    del module.__getattr__
                finally:
                    is_executing = False
        try:
            return vars(module)[name]
        except KeyError:
            raise AttributeError(f"module '{spec.name}' has no attribute '{name}'") from None

    module.__getattr__ = find  # type: ignore[method-assign]
