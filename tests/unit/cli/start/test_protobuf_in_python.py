"""A start does not execute protobuf's implementation in Python; the first use does."""

import subprocess
import sys

from google.protobuf.internal import python_message

from naiad.cli.start.protobuf_in_python import delay_protobuf_in_python

_START = """
import sys
from naiad.cli.main import _import_verb
_import_verb("serve")
assert "naiad.config.model_config_pb2" in sys.modules
assert "google.protobuf.internal.encoder" not in sys.modules
from naiad.config.model_config_pb2 import ModelConfig
assert ModelConfig.FromString(ModelConfig(name="resnet").SerializeToString()).name == "resnet"
from google.protobuf.internal import python_message
assert "google.protobuf.internal.encoder" not in sys.modules
assert python_message.GeneratedProtocolMessageType.__module__ == python_message.__name__
assert "google.protobuf.internal.encoder" in sys.modules
"""
_THREADS = """
import inspect
import sys
import threading
from naiad.cli.start.protobuf_in_python import delay_protobuf_in_python
delay_protobuf_in_python()
inspect.getmodule(sys._getframe())
assert "google.protobuf.internal.encoder" not in sys.modules
barrier = threading.Barrier(8)
def use():
    barrier.wait()
    from google.protobuf.internal.python_message import GeneratedProtocolMessageType
    print(GeneratedProtocolMessageType.__name__)
threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
_WITHOUT_C = """
from naiad.cli.start.protobuf_in_python import delay_protobuf_in_python
delay_protobuf_in_python()
from naiad.config.model_config_pb2 import ModelConfig
print(ModelConfig.FromString(ModelConfig(name="resnet").SerializeToString()).name)
"""


def run(code: str, **environment: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_first_use_executes_the_module() -> None:
    run(_START)


def test_threads_at_once_find_all_of_it() -> None:
    assert run(_THREADS).split() == ["GeneratedProtocolMessageType"] * 8


def test_installation_without_the_part_in_c_uses_it() -> None:
    assert run(_WITHOUT_C, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python") == "resnet\n"


def test_module_that_is_imported_stays() -> None:
    delay_protobuf_in_python()
    assert sys.modules[python_message.__name__] is python_message
