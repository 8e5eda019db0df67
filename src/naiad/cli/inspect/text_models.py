"""Models described by text: OpenVINO IR, forests, directories of Hugging Face and MLflow, safetensors."""

import json
import math
import re
import struct
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from naiad.backend.trees.forest_file import ForestFile
from naiad.cli.inspect.file_report import Inspection, TensorRow

_OPENVINO_TYPES = {
    **{
        f"{kind}{bits}": f"{name}{bits}"
        for kind, name in (("f", "FP"), ("i", "INT"), ("u", "UINT"))
        for bits in (8, 16, 32, 64)
    },
    "boolean": "BOOL",
    "string": "BYTES",
}
_HEAD_BYTES = 1 << 16
_MAX_HEADER_BYTES = 100 << 20
"""Limit of safetensors itself."""


def read_openvino(path: Path, found: Inspection) -> None:
    """Read an IR. Raises OSError, ValueError."""
    try:
        net = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise ValueError(f"the XML is cut off or damaged: {error}") from error
    version = net.find("rt_info/Runtime_version")
    found.producer = f"OpenVINO {version.get('value') if version is not None else ''}".rstrip()
    found.details["IR version"] = net.get("version", "")
    layers = net.findall("layers/layer")
    found.operators.update(layer.get("type", "") for layer in layers)
    constants = [layer.find("data") for layer in layers if layer.get("type") == "Const"]
    found.parameter_count = sum(math.prod(_dims(data.get("shape", ""))) for data in constants if data is not None)
    for layer in layers:
        data = layer.find("data")
        if layer.get("type") == "Parameter" and data is not None:
            shape = _dims(data.get("shape", ""))
            datatype = _OPENVINO_TYPES.get(data.get("element_type", ""), data.get("element_type", ""))
            found.inputs.append(TensorRow(layer.get("name", ""), datatype, shape))
    weights = path.with_suffix(".bin")
    if constants and not weights.is_file():
        found.problems.append(f"{weights.name}, the weights of the model, is not beside the file; copy it there")


def _dims(text: str) -> list[int]:
    return [int(dim) if dim.strip().lstrip("-").isdigit() else -1 for dim in text.split(",") if dim.strip()]


def read_forest(path: Path, found: Inspection) -> None:
    """Read a forest of XGBoost or LightGBM. Raises OSError, ValueError."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(b"tree"):
        _read_lightgbm(path.read_text(errors="replace"), found)
    elif re.match(rb'\s*\{\s*"', head):
        _read_xgboost(json.loads(path.read_bytes()), found)
    elif head.startswith(b"{"):
        version = ForestFile("", path, "xgboost_ubj").xgboost_version()
        found.producer = f"XGBoost {version[0]}.{version[1]}" if version else "XGBoost"
        found.unread.append("trees and objective: UBJSON, which XGBoost reads")
    else:
        found.producer = "treelite " + ".".join(map(str, struct.unpack_from("<3I", head)))
        found.unread.append("trees: treelite's own format")


def _read_lightgbm(text: str, found: Inspection) -> None:
    header = dict(re.findall(r"^(\w+)=(.*)$", text.partition("\nTree=")[0], re.MULTILINE))
    found.producer = f"LightGBM, format {header.get('version', 'unknown')}"
    for key in ("objective", "num_class"):
        found.details[key] = header.get(key, "")
    found.details["features"] = str(int(header.get("max_feature_idx", -1)) + 1)
    found.operators["tree"] = len(re.findall(r"^Tree=", text, re.MULTILINE))
    if "end of trees" not in text:
        found.problems.append("the file is cut off: the line 'end of trees' is missing; copy the whole file")


def _read_xgboost(model: dict[str, Any], found: Inspection) -> None:
    learner = model.get("learner", {})
    found.producer = "XGBoost " + ".".join(map(str, model.get("version", [])))
    found.details["objective"] = str(learner.get("objective", {}).get("name", ""))
    for key in ("num_feature", "num_class"):
        found.details[key] = str(learner.get("learner_model_param", {}).get(key, ""))
    booster = learner.get("gradient_booster", {})
    booster = booster.get("gbtree", booster)
    found.operators["tree"] = len(booster.get("model", {}).get("trees", []))


def read_hugging_face(path: Path, found: Inspection) -> None:
    """Read a directory of `save_pretrained`. Raises OSError, ValueError."""
    config = json.loads((path / "config.json").read_bytes())
    found.producer = f"transformers {config.get('transformers_version', '')}".rstrip()
    found.details |= {
        "architecture": ", ".join(config.get("architectures") or ()),
        "model type": str(config.get("model_type", "")),
    }
    weights = sorted(path.glob("*.safetensors"))
    for file in weights:
        read_safetensors(file, found)
    if not weights:
        found.problems.append("there is no model.safetensors; load the model with transformers and save_pretrained")


def read_safetensors(path: Path, found: Inspection) -> None:
    """Count the parameters in a safetensors file. Raises OSError, ValueError."""
    with path.open("rb") as file:
        (size_bytes,) = struct.unpack("<Q", file.read(8))
        if size_bytes > _MAX_HEADER_BYTES:
            raise ValueError(f"{path.name} has a header of {size_bytes} bytes, which no safetensors file has")
        header = json.loads(file.read(size_bytes))
    counts = [math.prod(value["shape"]) for name, value in header.items() if name != "__metadata__"]
    found.parameter_count = (found.parameter_count or 0) + sum(counts)


def read_mlflow(path: Path, found: Inspection) -> None:
    """Read the file MLmodel, a short YAML. Raises OSError."""
    text = (path / "MLmodel").read_text(errors="replace")
    version = re.search(r"^mlflow_version: *['\"]?([\w.]+)", text, re.MULTILINE)
    found.producer = f"MLflow {version[1]}" if version else "MLflow"
    flavors = text.partition("\nflavors:")[2] or text.partition("flavors:")[2]
    found.details["flavors"] = ", ".join(re.findall(r"^  (\w+):", flavors.partition("\n\n")[0], re.MULTILINE))
