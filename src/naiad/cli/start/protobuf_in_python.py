"""protobuf's implementation in Python, which is imported only by an installation without the one in C.

Each module that `protoc` has generated imports it all the same: eleven modules, 0.7 MiB, and a third of the time that
protobuf's import takes. Here it is a module that is executed when code asks for something in it.
"""

import importlib.util
import sys
from types import ModuleType

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
    loader = importlib.util.LazyLoader(spec.loader)
    spec.loader = loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    # `from package import module` finds it here, and does not look into the module, which would execute it.
    package: ModuleType = sys.modules[_PACKAGE]
    setattr(package, _MODULE, module)
