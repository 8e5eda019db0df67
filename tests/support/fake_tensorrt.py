"""A `tensorrt` package whose engines are JSON and compute with numpy on the memory of fake_cudart.c.

It checks what the real package checks: shapes within the active profile, addresses of all tensors, a stream. The
keys of an engine: `tensors` (name, mode, dtype, shape), `profiles` (input to minimum, optimum and maximum), and for
each output `like` (the input whose shape and sum with `factor` it has). A HOST input adds its first value.
"""

import ctypes
import enum
import json
import math

import numpy as np

__version__ = "10.13.0"

TensorIOMode = enum.Enum("TensorIOMode", ["NONE", "INPUT", "OUTPUT"])
TensorLocation = enum.Enum("TensorLocation", ["DEVICE", "HOST"])
TensorFormat = enum.Enum("TensorFormat", ["LINEAR", "CHW4"])
DataType = enum.Enum("DataType", ["FLOAT", "HALF", "BF16", "INT8", "INT32", "INT64", "BOOL", "UINT8", "FP8"])
ExecutionContextAllocationStrategy = enum.Enum("ExecutionContextAllocationStrategy", ["STATIC", "ON_PROFILE_CHANGE"])

_NUMPY = {"FLOAT": np.float32, "HALF": np.float16, "INT32": np.int32, "INT64": np.int64, "BOOL": np.bool_}


class ILogger:
    Severity = enum.IntEnum("Severity", ["INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE"], start=0)


def init_libnvinfer_plugins(logger, namespace):
    logger.log(ILogger.Severity.INFO, "plugins are registered")
    return True


class PluginRegistry:
    def load_library(self, path):
        raise RuntimeError(f"{path}: cannot open shared object file")


def get_plugin_registry():
    return PluginRegistry()


class Runtime:
    engine_host_code_allowed = False

    def __init__(self, logger):
        self.logger = logger

    def deserialize_cuda_engine(self, content):
        problem = self._problem(content)
        if problem:
            self.logger.log(ILogger.Severity.ERROR, problem)
            return None
        return CudaEngine(json.loads(content), self.logger)

    def _problem(self, content):
        if not content.startswith(b"{"):
            return "Serialization assertion plan->header.magicTag == rt::kPLAN_MAGIC_TAG failed."
        engine = json.loads(content)
        version = engine.get("version", __version__)
        if engine.get("has_host_code"):
            return "" if self.engine_host_code_allowed else "Host code is not allowed in this engine"
        if version != __version__:
            return (
                "The engine plan file is not compatible with this version of TensorRT, expecting library version "
                f"{__version__} got {version}, please rebuild."
            )
        return ""


class CudaEngine:
    def __init__(self, content, logger):
        self.content = content
        self.logger = logger
        self.tensors = {each["name"]: each for each in content["tensors"]}
        self.num_io_tensors = len(self.tensors)
        self.num_optimization_profiles = len(content.get("profiles", [{}]))
        self.has_implicit_batch_dimension = content.get("has_implicit_batch", False)

    def get_tensor_name(self, index):
        return list(self.tensors)[index]

    def get_tensor_mode(self, name):
        return TensorIOMode[self.tensors[name]["mode"]]

    def get_tensor_dtype(self, name):
        return DataType[self.tensors[name].get("dtype", "FLOAT")]

    def get_tensor_shape(self, name):
        return tuple(self.tensors[name]["shape"])

    def get_tensor_location(self, name):
        return TensorLocation[self.tensors[name].get("location", "DEVICE")]

    def get_tensor_format(self, name):
        return TensorFormat[self.tensors[name].get("format", "LINEAR")]

    def get_tensor_profile_shape(self, name, index):
        return [tuple(shape) for shape in self.content["profiles"][index][name]]

    def create_execution_context(self, strategy):
        if self.content.get("is_too_large") and strategy is ExecutionContextAllocationStrategy.STATIC:
            self.logger.log(ILogger.Severity.ERROR, "Requested amount of GPU memory could not be allocated")
            return None
        return ExecutionContext(self)


class ExecutionContext:
    def __init__(self, engine):
        self.engine = engine
        self.profile = None
        self.shapes = {}
        self.addresses = {}

    def _fail(self, problem):
        self.engine.logger.log(ILogger.Severity.ERROR, problem)
        return False

    def set_optimization_profile_async(self, index, stream):
        assert isinstance(stream, int)
        self.profile, self.shapes = index, {}
        return True

    def set_input_shape(self, name, shape):
        minimum = maximum = self.engine.get_tensor_shape(name)
        if -1 in minimum:
            minimum, _, maximum = self.engine.get_tensor_profile_shape(name, self.profile)
        sizes = zip(minimum, shape, maximum, strict=False)
        if len(shape) != len(minimum) or not all(low <= size <= high for low, size, high in sizes):
            return self._fail(f"{name} of {shape} is outside profile {self.profile}")
        self.shapes[name] = tuple(shape)
        return True

    def get_tensor_shape(self, name):
        tensor = self.engine.tensors[name]
        if tensor["mode"] == "INPUT":
            return self.shapes[name]
        return tuple(tensor["shape"]) if tensor.get("depends_on_data") else self.shapes[tensor["like"]]

    def get_max_output_size(self, name):
        like = self.engine.tensors[name]["like"]
        return math.prod(self.shapes[like]) * np.dtype(self._dtype(name)).itemsize

    def set_tensor_address(self, name, address):
        assert address
        self.addresses[name] = address
        return True

    def execute_async_v3(self, stream):
        assert stream
        if self.engine.content.get("fails"):
            return self._fail("Cask convolution execution")
        inputs = {name: self._view(name) for name in self.shapes}
        extra = sum(float(v.ravel()[0]) for name, v in inputs.items() if self._is_on_host(name))
        for name, tensor in self.engine.tensors.items():
            if tensor["mode"] == "OUTPUT":
                self._view(name)[...] = inputs[tensor["like"]] * tensor.get("factor", 1) + extra
        return True

    def _is_on_host(self, name):
        return self.engine.get_tensor_location(name) is TensorLocation.HOST

    def _dtype(self, name):
        return _NUMPY[self.engine.get_tensor_dtype(name).name]

    def _view(self, name):
        shape, dtype = self.get_tensor_shape(name), np.dtype(self._dtype(name))
        size = math.prod(shape) * dtype.itemsize
        memory = (ctypes.c_uint8 * size).from_address(self.addresses[name])
        return np.frombuffer(memory, dtype).reshape(shape)
