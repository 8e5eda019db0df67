"""What to do about a model that ONNX Runtime does not load, by its reason."""

import re

_ADVICE = (
    (r"opset \d+ is under development|ValidateOpsetForDomain",
     "its opset is later than the installed ONNX Runtime knows; update onnxruntime, or export the model with an "
     "earlier opset (opset_version=..., target_opset=...)"),
    (r"Unsupported model IR version",
     "its IR version is later than that of the installed ONNX Runtime; update onnxruntime, or set model.ir_version "
     "to an earlier one with the package onnx"),
    (r"MLDataType for: tensor\((\w+)\)|tensor\((complex\d+)\)",
     "it has a tensor of a datatype that ONNX Runtime does not have; export real and imaginary part as two tensors"),
    (r"No Op registered for (\S+)|is not a registered function/op",
     "it has an operator that ONNX Runtime does not have; name the library with the operator in model_operations "
     "{ op_library_filename }, update onnxruntime, or export the model without it"),
    (r"External data path|External initializer|external data",
     "its weights are in another file, which is missing, too short or outside its directory; copy the whole "
     "directory of the export, with the names that the files had"),
    (r"Invalid model\.|INVALID_GRAPH|Type Error|ShapeInferenceError",
     "its graph is not valid: onnx.checker.check_model(path, full_check=True) says where; export the model again"),
    (r"NOT_IMPLEMENTED",
     "it uses an operator with datatypes that ONNX Runtime does not implement on this device; export it in FP32"),
    (r"protobuf parsing failed|No graph was found in the protobuf",
     "it is truncated, or no ONNX model; copy the whole file"),
)  # fmt: skip


def load_advice(reason: str) -> str:
    """Return a sentence for ONNX Runtime's reason that a file cannot be loaded; empty for an unknown one."""
    return next((advice for pattern, advice in _ADVICE if re.search(pattern, reason)), "")
