"""Models that fail: on load, each in its own way, or in execution, in the way that a request names."""

from pathlib import Path

from support.model_repository import add_sub_config, write_identity, write_model
from support.onnx_models import add_sub

MISCHIEF = """
import ctypes
import os
import signal

import numpy as np
import triton_python_backend_utils as pb_utils


def raise_deep_down():
    raise ValueError("boom 17")


def outputs(values, name="OUTPUT0"):
    return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(name, values)])


def failed(*arguments):
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(*arguments))


GOOD = np.array([1.5, 2.5], np.float32)


class TritonPythonModel:
    def execute(self, requests):
        kind = pb_utils.get_input_tensor_by_name(requests[0], "KIND").as_numpy()[0].decode()
        return getattr(self, kind)(requests)

    def good(self, requests):
        return [outputs(GOOD) for _ in requests]

    def raises(self, requests):
        raise_deep_down()

    def raises_model_exception(self, requests):
        raise pb_utils.TritonModelException("not today")

    def answers_error(self, requests):
        return [failed("bad luck")]

    def answers_not_found(self, requests):
        return [failed("no such user", pb_utils.TritonError.NOT_FOUND)]

    def answers_invalid(self, requests):
        return [failed("too short", pb_utils.TritonError.INVALID_ARG)]

    def answers_unavailable(self, requests):
        return [failed("come back later", pb_utils.TritonError.UNAVAILABLE)]

    def returns_nothing(self, requests):
        pass

    def returns_no_list(self, requests):
        return outputs(GOOD)

    def returns_too_many(self, requests):
        return [outputs(GOOD), outputs(GOOD)]

    def returns_too_few(self, requests):
        return []

    def returns_other_things(self, requests):
        return ["an answer"]

    def returns_wrong_datatype(self, requests):
        return [outputs(GOOD.astype(np.int32))]

    def returns_wrong_shape(self, requests):
        return [outputs(np.zeros((3,), np.float32))]

    def returns_wrong_rank(self, requests):
        return [outputs(np.zeros((2, 2), np.float32))]

    def returns_no_output(self, requests):
        return [pb_utils.InferenceResponse(output_tensors=[])]

    def returns_unknown_output(self, requests):
        return [outputs(GOOD, "OUTPUT9")]

    def exits(self, requests):
        os._exit(7)

    def raises_system_exit(self, requests):
        raise SystemExit(3)

    def segfaults(self, requests):
        ctypes.string_at(0)

    def is_killed(self, requests):
        os.kill(os.getpid(), signal.SIGKILL)

    def loops(self, requests):
        while True:
            pass
"""


def write_mischief(repository: Path, name: str, *, instances: int = 1, **parameters: str) -> Path:
    """Write a Python model that does what its input KIND, a string, says; see the methods in `MISCHIEF`.

    `parameters` are parameters of the configuration, like execute_timeout_s="1".
    """
    config = (
        'backend: "python"\n'
        'input [ { name: "KIND" data_type: TYPE_STRING dims: [ 1 ] } ]\n'
        'output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 2 ] } ]\n'
        f"instance_group [ {{ count: {instances} kind: KIND_CPU }} ]\n"
    )
    for key, value in parameters.items():
        config += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
    return write_model(repository, name, config, {"1/model.py": MISCHIEF})


_INITIALIZE = """class TritonPythonModel:
    def initialize(self, args):
        {}

    def execute(self, requests):
        return []
"""
_ONNX = add_sub()

UNLOADABLE: dict[str, tuple[str | None, dict[str, str | bytes], str]] = {
    "onnx_garbage": (add_sub_config("onnxruntime"), {"1/model.onnx": b"\xff" * 100}, r"model\.onnx"),
    "onnx_cut_off": (add_sub_config("onnxruntime"), {"1/model.onnx": _ONNX[: len(_ONNX) // 2]}, r"model\.onnx"),
    "onnx_empty": (add_sub_config("onnxruntime"), {"1/model.onnx": b""}, r"model\.onnx"),
    "onnx_garbage_bare": (None, {"1/model.onnx": b"\xff" * 100}, r"model\.onnx"),
    "onnx_missing": (add_sub_config("onnxruntime"), {}, r"model\.onnx"),
    "onnx_missing_name": (
        add_sub_config("onnxruntime", extra='default_model_filename: "other.onnx"'),
        {"1/model.onnx": _ONNX},
        r"other\.onnx",
    ),
    "onnx_wrong_type": (add_sub_config("onnxruntime", datatype="INT32"), {"1/model.onnx": _ONNX}, r"INPUT0|INT32"),
    "onnx_wrong_dims": (
        add_sub_config("onnxruntime").replace("dims: [ 16 ]", "dims: [ 17 ]"),
        {"1/model.onnx": _ONNX},
        r"INPUT0.*\[-1,\s?17\]|17",
    ),
    "onnx_wrong_name": (
        add_sub_config("onnxruntime").replace("INPUT1", "INPUTX"),
        {"1/model.onnx": _ONNX},
        r"INPUTX",
    ),
    "unknown_backend": (add_sub_config("nonesuch"), {}, r"nonesuch"),
    "no_such_field": (add_sub_config("identity", extra="max_batch_sise: 3"), {}, r"config\.pbtxt:\d+:.*max_batch_si"),
    "no_syntax": (add_sub_config("identity", extra="} ]"), {}, r"config\.pbtxt:\d+:"),
    "python_missing": (add_sub_config("python"), {}, r"model\.py"),
    "python_raises": (
        add_sub_config("python"),
        {"1/model.py": _INITIALIZE.format("raise ValueError('no weights here')")},
        r"(?s)ValueError: no weights here.*model\.py\(3\)",
    ),
    "python_no_import": (add_sub_config("python"), {"1/model.py": "import no_such_module\n"}, r"no_such_module"),
    "python_no_syntax": (
        add_sub_config("python"),
        {"1/model.py": "class TritonPythonModel(:\n"},
        r"SyntaxError|syntax",
    ),
    "python_no_class": (add_sub_config("python"), {"1/model.py": "x = 1\n"}, r"TritonPythonModel"),
    "python_no_execute": (
        add_sub_config("python"),
        {"1/model.py": "class TritonPythonModel:\n    pass\n"},
        r"execute",
    ),
    "python_exits": (
        add_sub_config("python"),
        {"1/model.py": _INITIALIZE.format("__import__('os')._exit(9)")},
        r"exited with code 9",
    ),
    "python_segfaults": (
        add_sub_config("python"),
        {"1/model.py": _INITIALIZE.format("__import__('ctypes').string_at(0)")},
        r"SIGSEGV",
    ),
    "python_hangs": (
        add_sub_config("python", extra='parameters { key: "initialize_timeout_s" value { string_value: "1" } }'),
        {"1/model.py": _INITIALIZE.format("__import__('time').sleep(600)")},
        r"initialize",
    ),
}
"""Name to configuration, files, and what the reason must say."""


def write_unloadable(repository: Path) -> None:
    """Write every model of `UNLOADABLE`, and `good` beside them."""
    for name, (config, files, _) in UNLOADABLE.items():
        write_model(repository, name, config, files)
    write_identity(repository, "good")
