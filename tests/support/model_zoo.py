"""The tiny Python models that many tests serve: their source and configuration from a few expressions."""

import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path

from support.model_repository import write_model

_SOURCE = """
import json
import os
import sys
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        pass
{initialize}

    def execute(self, requests):
        responses = []
        for request in requests:
{each}
            outputs = [{outputs}]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor(*output) for output in outputs]))
        return responses
"""
NO_RESPONSES = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
"""A `model.py` that loads, for models that no request reaches."""


def python_source(
    outputs: Mapping[str, str], *, inputs: Iterable[str] = (), each: str = "", initialize: str = ""
) -> str:
    """Return a `model.py` whose outputs are expressions, in which the input tensors have their names.

    `each` are statements before the expressions of a request, `initialize` statements of that method.
    """
    arrays = [f'{name} = pb_utils.get_input_tensor_by_name(request, "{name}").as_numpy()' for name in inputs]
    statements = "\n".join([*arrays, textwrap.dedent(each)])
    return _SOURCE.format(
        initialize=textwrap.indent(textwrap.dedent(initialize), " " * 8),
        each=textwrap.indent(statements, " " * 12),
        outputs=", ".join(f'("{name}", {expression})' for name, expression in outputs.items()),
    )


def tensors(inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    """Return the part of a configuration with inputs and outputs: name to datatype and dims, `FP32 [ -1 ]`."""
    lines = []
    for field, specs in (("input", inputs), ("output", outputs)):
        for name, spec in specs.items():
            datatype, dims = spec.split(maxsplit=1)
            lines.append(f'{field} [ {{ name: "{name}" data_type: TYPE_{datatype} dims: {dims} }} ]\n')
    return "".join(lines)


def write_python(repository: Path, name: str, config: str, outputs: Mapping[str, str], **source: object) -> Path:
    """Write a Python model; the keywords are the same as in `python_source`."""
    model_file = python_source(outputs, **source)  # type: ignore[arg-type] - passed on
    return write_model(repository, name, f'backend: "python"\n{config}', {"1/model.py": model_file})
