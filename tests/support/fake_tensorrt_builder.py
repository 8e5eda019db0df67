"""The builder of a `tensorrt` package: it reads ONNX files, and writes what it was asked for as JSON.

`version` is 10 or 11, which has no flags for precisions.
"""

import enum
import json
from types import ModuleType

import onnx


class ILogger:
    Severity = enum.IntEnum("Severity", ["INTERNAL_ERROR", "ERROR", "WARNING", "INFO", "VERBOSE"], start=0)


class Network:
    def __init__(self, flags):
        self.flags = flags
        self.graph = None

    @property
    def num_inputs(self):
        return len(self.graph.input)

    def get_input(self, index):
        return Tensor(self.graph.input[index])


class Tensor:
    def __init__(self, info):
        self.name = info.name
        self.shape = [
            each.dim_value if each.HasField("dim_value") else -1 for each in info.type.tensor_type.shape.dim
        ]


class Config:
    def __init__(self):
        self.flags = {"TF32"}
        self.profiles = []
        self.timings = b""

    def set_flag(self, flag):
        self.flags.add(flag.name)

    def clear_flag(self, flag):
        self.flags.discard(flag.name)

    def create_timing_cache(self, content):
        return content

    def set_timing_cache(self, content, ignore_mismatch):
        assert not ignore_mismatch
        self.timings = content

    def get_timing_cache(self):
        return self

    def serialize(self):
        return self.timings + b"kernel;"

    def add_optimization_profile(self, profile):
        self.profiles.append(profile)


class Profile(dict):
    def set_shape(self, name, low, typical, high):
        self[name] = [list(low), list(typical), list(high)]


class ParserError:
    def __init__(self, text):
        self.text = text

    def desc(self):
        return self.text


class OnnxParser:
    def __init__(self, network, logger):
        self.network = network
        self.errors = []

    def parse_from_file(self, file):
        self.network.graph = onnx.load(file).graph
        unknown = [node.op_type for node in self.network.graph.node if node.op_type.startswith("Unknown")]
        self.errors = [f"No importer registered for op: {kind}" for kind in unknown]
        return not unknown

    @property
    def num_errors(self):
        return len(self.errors)

    def get_error(self, index):
        return ParserError(self.errors[index])


class Builder:
    def __init__(self, logger):
        self.logger = logger

    def create_network(self, flags):
        return Network(flags)

    def create_builder_config(self):
        return Config()

    def create_optimization_profile(self):
        return Profile()

    def build_serialized_network(self, network, config):
        kinds = [node.op_type for node in network.graph.node]
        if "If" in kinds:
            self.logger.log(ILogger.Severity.ERROR, "Could not find any implementation for node If")
            return None
        plan = {
            "flags": network.flags,
            "precision": sorted(config.flags),
            "profiles": config.profiles,
            "ops": kinds,
            "timings": config.timings.decode(),
            "initializers": {each.name: each.data_type for each in network.graph.initializer},
        }
        return json.dumps(plan).encode()


def package(version):
    """Return the module."""
    module = ModuleType("tensorrt")
    flags = ["TF32", "FP16", "BF16", "INT8"] if version == 10 else ["TF32"]
    module.__version__ = f"{version}.4.0"
    module.ILogger = ILogger
    module.Builder = Builder
    module.OnnxParser = OnnxParser
    module.BuilderFlag = enum.Enum("BuilderFlag", flags)
    module.NetworkDefinitionCreationFlag = enum.IntEnum("NetworkDefinitionCreationFlag", {"STRONGLY_TYPED": 1})
    return module
