"""The operator that a converter has no counterpart for, from its messages."""

import re

_MESSAGES = (
    re.compile(r"No ONNX function found for <OpOverload\(op='([^']+)'"),  # torch.onnx, dynamo
    re.compile(r"Exporting the operator '([^']+)' to ONNX"),  # torch.onnx, TorchScript
    re.compile(r"(aten::\w+)[^\n]{0,80}(?:not supported|not implemented)"),
    re.compile(
        r"Unable to find a (?:shape calculator|converter) for type '<class '([^']+)'>'"
    ),  # skl2onnx, also mltools
    re.compile(r"Unable to find a (?:shape calculator|converter) for (?:alias|type) '([^']+)'"),
    re.compile(r"does not support the following (?:ONNX )?operations?:\s*([\w.:]+)"),  # OpenVINO
    re.compile(r"No translator found for:?\s*([\w.:]+)"),
    re.compile(r"Tensorflow op \[[^\]:]+: ([^\]]+)\] is not supported"),  # tf2onnx
    re.compile(r"Could not find an implementation for ([\w.:]+)"),  # ONNX Runtime
    re.compile(r"No Op registered for (\w+)"),
    re.compile(r"No importer registered for op: (\w+)"),  # TensorRT
    re.compile(r"(?:Flex|Custom) ops?:\s*([\w.]+)"),  # LiteRT
    re.compile(r"error: '(tf\.\w+)' op is neither a custom op nor a flex op"),
)


def missing_operator(text: str) -> str:
    """Return the name of the operator in a converter's message, "" if it names none."""
    found = (pattern.search(text) for pattern in _MESSAGES)
    return next((match.group(1) for match in found if match), "")
